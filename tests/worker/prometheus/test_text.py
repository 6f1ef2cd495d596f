"""What is written is what Prometheus reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from leasemill.worker.prometheus.catalogue import JOBS, METRICS, RUN, SLOTS
from leasemill.worker.prometheus.samples import Samples, exposition


def test_every_metric_is_there_with_its_type_and_help_even_without_a_sample() -> None:
    found = {family.name: family for family in text_string_to_metric_families(exposition(Samples()))}
    for name, metric in METRICS.items():
        family = found[name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.type, metric.help)
        assert family.samples == []
    assert len(found) == len(METRICS)


def test_labels_of_any_text_are_read_as_they_were() -> None:
    kind = 'back\\slash "quotes"\nline, {braces}=, ü'
    samples = Samples()
    samples.add(JOBS, (kind, "q", "failed"), 3)
    (family,) = [one for one in text_string_to_metric_families(exposition(samples)) if one.samples]
    (sample,) = family.samples
    assert sample.name == "leasemill_jobs_total"
    assert sample.labels == {"kind": kind, "queue": "q", "end": "failed"}
    assert sample.value == 3


def test_buckets_are_cumulated_and_end_without_a_bound() -> None:
    samples = Samples()
    for value in (0.001, 0.2, 0.2, 1e9):
        samples.observe(RUN, ("k", "q"), value)
    samples.add(SLOTS, ("free",), 7)
    families = {one.name: one for one in text_string_to_metric_families(exposition(samples))}
    run = families["leasemill_job_run_seconds"].samples
    buckets = {float(one.labels["le"]): one.value for one in run if one.name.endswith("_bucket")}
    assert list(buckets) == [*RUN.buckets, float("inf")]
    assert (buckets[0.005], buckets[0.1], buckets[0.5], buckets[3600.0], buckets[float("inf")]) == (1, 1, 3, 3, 4)
    assert {one.name: one.value for one in run if not one.name.endswith("_bucket")} == {
        "leasemill_job_run_seconds_count": 4,
        "leasemill_job_run_seconds_sum": 0.001 + 0.2 + 0.2 + 1e9,
    }
    assert [one.value for one in families["leasemill_slots"].samples] == [7]
