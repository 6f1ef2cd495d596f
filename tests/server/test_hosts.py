"""Which names a server answers to, and that no page of another site reaches it."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from leasemill.server.address import is_loopback
from leasemill.server.authorizer import RequestHead
from leasemill.server.hosts import Hosts
from leasemill.wire.problems import Denied

LOCAL = Hosts(is_local=True)
ANY = Hosts(is_local=False)
NAMED = Hosts(is_local=False, names=["Jobs.example."])


def head(**headers: str) -> RequestHead:
    return RequestHead("POST", "/", {name.replace("_", "-"): value for name, value in headers.items()}, "1.2.3.4", None)


@pytest.mark.parametrize("host", [
    "localhost", "localhost:7411", "LOCALHOST:7411", "127.0.0.1", "127.0.0.1:7411", "[::1]:7411", "127.0.0.2:1",
    "localhost.:7411",
])  # fmt: skip
def test_a_server_on_loopback_answers_to_this_machine_s_names(host: str) -> None:
    LOCAL.check(head(host=host))


@pytest.mark.parametrize("host", [
    "evil.example", "evil.example:7411", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example@localhost",
    "localhost@evil.example", "", " ", "10.0.0.1", "[::2]", "[::1", "localhost/x", "localhost,evil.example", "0.0.0.0",
    "localhost:7411:1", "2130706433",
])  # fmt: skip
def test_and_to_no_other_so_that_no_name_can_be_made_to_point_here(host: str) -> None:
    with pytest.raises(Denied) as denied:
        LOCAL.check(head(host=host))
    assert denied.value.problem.status == HTTPStatus.MISDIRECTED_REQUEST


def test_a_request_without_a_host_is_refused_on_loopback() -> None:
    with pytest.raises(Denied):
        LOCAL.check(head())


def test_a_server_for_others_answers_to_any_name_or_to_those_it_was_given() -> None:
    ANY.check(head(host="whatever.example"))
    NAMED.check(head(host="jobs.example:443"))
    NAMED.check(head(host="localhost"))
    with pytest.raises(Denied):
        NAMED.check(head(host="other.example"))


@pytest.mark.parametrize("hosts", [LOCAL, ANY], ids=["loopback", "elsewhere"])
@pytest.mark.parametrize("headers", [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://localhost"},
    {"origin": "http://localhost:7412"},
    {"origin": "file://localhost:7411"},
    {"origin": "http://localhost:7411.evil.example"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "nonsense"},
    {"origin": "http://localhost:7411", "sec_fetch_site": "cross-site"},
])  # fmt: skip
def test_a_page_of_another_site_is_refused_everywhere(hosts: Hosts, headers: dict[str, str]) -> None:
    with pytest.raises(Denied) as denied:
        hosts.check(head(host="localhost:7411", **headers))
    assert denied.value.problem.status == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize("headers", [
    {},
    {"origin": "http://localhost:7411"},
    {"origin": "https://LOCALHOST:7411"},
    {"sec_fetch_site": "same-origin", "origin": "http://localhost:7411"},
    {"sec_fetch_site": "none"},
])  # fmt: skip
def test_our_own_pages_and_programs_are_not(headers: dict[str, str]) -> None:
    LOCAL.check(head(host="localhost:7411", **headers))


@pytest.mark.parametrize(("address", "is_local"), [
    ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("[::1]", True), ("localhost", True),
    ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.com", False), ("", False),
])  # fmt: skip
def test_what_is_loopback(address: str, is_local: bool) -> None:
    assert is_loopback(address) is is_local
