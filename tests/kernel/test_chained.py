"""How a chain hands a result on."""

from __future__ import annotations

import pytest
from msgspec import json

from leasemill.errors import Invalid
from leasemill.kernel.bounds import check_rules
from leasemill.kernel.model import ChainedJob, Rules
from leasemill.kernel.transitions.groups import payload_after


def chained(payload: bytes, result_name: str | None) -> ChainedJob:
    return ChainedJob("default", "parse", payload, result_name=result_name)


@pytest.mark.parametrize("payload", [b"{}", b" { } ", b'{"url":"u"}', b'{ "url" : "u" }\n'])
@pytest.mark.parametrize("result", [None, b"null", b"[1,2]", b'{"a":1}', b'"}"'])
@pytest.mark.parametrize("name", ["page", "seite_\u00e4", 'quo"te'])
def test_the_result_becomes_an_argument(payload: bytes, result: bytes | None, name: str) -> None:
    made = payload_after(chained(payload, name), result)
    assert json.decode(made) == json.decode(payload) | {name: json.decode(result or b"null")}


def test_a_job_that_takes_no_result_keeps_its_payload() -> None:
    assert payload_after(chained(b'{"url":"u"}', None), b"1") == b'{"url":"u"}'


def test_a_result_needs_an_object_to_be_an_argument_of() -> None:
    with pytest.raises(Invalid, match="must be a JSON object"):
        check_rules(Rules(chain=(chained(b"[]", "page"),)))
