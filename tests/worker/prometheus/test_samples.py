"""Numbers by metric and labels: bounded, added up, subtracted."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from leasemill.worker.prometheus.catalogue import JOBS, METRICS, PROCESSES, QUEUE_JOBS, QUEUE_OLDEST, RUN, WORKER_INFO
from leasemill.worker.prometheus.samples import MOST_VALUES, OTHER, Samples, decoded, encoded


def test_kinds_and_queues_beyond_the_first_are_counted_as_other() -> None:
    samples = Samples()
    for number in range(MOST_VALUES + 50):
        samples.add(JOBS, (f"kind-{number}", "default", "succeeded"))
        samples.observe(RUN, (f"kind-{number}", "default"), 1.0)
    assert len(samples.values[JOBS.name]) == MOST_VALUES + 1
    assert samples.values[JOBS.name][OTHER, "default", "succeeded"] == 50
    assert samples.values[JOBS.name]["kind-0", "default", "succeeded"] == 1
    assert len(samples.histograms[RUN.name]) == MOST_VALUES + 1
    assert samples.histograms[RUN.name][OTHER, "default"][-1] == 50.0


def test_what_several_have_is_bounded_again_when_it_is_added_up() -> None:
    total = Samples()
    for part in range(3):
        one = Samples()
        for number in range(100):
            one.add(QUEUE_JOBS, (f"queue-{part}-{number}", "ready"), 2)
            one.add(QUEUE_OLDEST, (f"queue-{part}-{number}",), float(number))
        total.merge(one)
    assert len(total.values[QUEUE_JOBS.name]) == MOST_VALUES + 1
    assert total.values[QUEUE_JOBS.name][OTHER, "ready"] == 200
    assert total.values[QUEUE_OLDEST.name][OTHER,] == 99.0, "an age is not added up"


def test_a_value_on_a_bound_is_in_its_bucket() -> None:
    samples = Samples()
    for value in (RUN.buckets[0], RUN.buckets[0] + 0.0001, RUN.buckets[-1] + 1):
        samples.observe(RUN, ("k", "q"), value)
    row = samples.histograms[RUN.name]["k", "q"]
    assert (row[0], row[1], row[-2]) == (1, 1, 1)
    assert row[-1] == sum((RUN.buckets[0], RUN.buckets[0] + 0.0001, RUN.buckets[-1] + 1))


counts = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1000)), max_size=20)


@given(counts, counts)
def test_what_was_sent_twice_adds_up_to_what_was_counted(
    first: list[tuple[str, int]], then: list[tuple[str, int]]
) -> None:
    counting, received = Samples(), Samples()
    for part in (first, then):
        before = counting.copy()
        for kind, value in part:
            counting.add(JOBS, (kind, "q", "failed"), value)
            counting.observe(RUN, (kind, "q"), float(value))
        message = json.loads(json.dumps(encoded(counting.since(before))))
        received.merge(decoded(message))
    assert received.values == counting.values
    assert received.histograms == counting.histograms


def test_nothing_new_is_nothing_to_send() -> None:
    samples = Samples()
    samples.add(JOBS, ("k", "q", "failed"))
    samples.observe(RUN, ("k", "q"), 1.0)
    assert encoded(samples.since(samples.copy())) == {"values": [], "histograms": []}


def test_what_newer_code_sends_is_left_out() -> None:
    message = {
        "values": [["leasemill_new_total", [], 1], [JOBS.name, ["k", "q"], 1], [PROCESSES.name, [], 2]],
        "histograms": [[RUN.name, ["k", "q"], [1.0, 2.0]]],
    }
    found = decoded(message)
    assert found.values == {PROCESSES.name: {(): 2}}
    assert found.histograms == {}


def test_every_name_says_its_unit_and_whether_it_only_rises() -> None:
    for name, metric in METRICS.items():
        assert name.startswith("leasemill_")
        assert name.endswith("_total") == (metric.type == "counter"), name
        assert bool(metric.buckets) == (metric.type == "histogram"), name
        assert list(metric.buckets) == sorted(metric.buckets)
        assert metric.help.endswith("."), name
        assert not {"job", "job_id", "lane", "key"} & set(metric.labels), "no label for every job"
        assert "worker" not in metric.labels or metric is WORKER_INFO, "a restart would begin new series of it"
