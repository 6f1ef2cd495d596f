"""Who may look, who may act, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from leasemill.dashboard import Dashboard, Principal, ViewerRole, asgi
from leasemill.dashboard.access import FAILURES_ALLOWED, FAILURES_WITHIN_S, SESSION_S, SESSIONS_KEPT, SignIn
from leasemill.dashboard.forms import COOKIE, token_of
from leasemill.dashboard.security_headers import CONTENT_SECURITY_POLICY
from leasemill.errors import Invalid
from leasemill.kernel.model import JobSpec
from leasemill.store.base import Store
from tests.dashboard.client import Client
from tests.dashboard.conftest import Desk, desk_on
from tests.dashboard.markup import parsed

PAUSE = "/acts/pause-queue?queue=mail"
OURS = {"Origin": "http://testserver"}


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def desk(memory: Store) -> Iterator[Desk]:
    memory.enqueue([JobSpec("one", "mail", "send")])
    made = desk_on(memory)
    yield made
    made.dashboard.close()


def is_paused(store: Store) -> bool:
    return store.queues()[0].is_paused


# The link that works once ----------------------------------------------------------------------------------------


def test_a_link_signs_in_once() -> None:
    links: list[str] = []
    sign_in = SignIn(Principal("ann"), on_new_link=links.append)
    token = sign_in.new_token()
    session = sign_in.open(token)
    assert session is not None
    assert sign_in.principal(session) == Principal("ann")
    assert sign_in.open(token) is None
    assert sign_in.open(links[0]) is not None


def test_a_new_link_voids_the_one_before() -> None:
    sign_in = SignIn(Principal("ann"))
    first, second = sign_in.new_token(), sign_in.new_token()
    assert sign_in.open(first) is None
    assert sign_in.open(second) is not None


def test_a_session_ends() -> None:
    time = Time()
    sign_in = SignIn(Principal("ann"), monotonic=time)
    session = sign_in.open(sign_in.new_token())
    time.now = SESSION_S - 1
    assert sign_in.principal(session) is not None
    time.now = SESSION_S
    assert sign_in.principal(session) is None


def test_only_so_many_sessions_are_kept() -> None:
    sign_in = SignIn(Principal("ann"))
    sessions = [sign_in.open(sign_in.new_token()) for _ in range(SESSIONS_KEPT + 1)]
    assert sign_in.principal(sessions[0]) is None
    assert all(sign_in.principal(one) for one in sessions[1:])


def test_guessing_is_slowed_down() -> None:
    time = Time()
    sign_in = SignIn(Principal("ann"), monotonic=time)
    for _ in range(FAILURES_ALLOWED):
        assert not sign_in.is_throttled()
        sign_in.open("guess")
    assert sign_in.is_throttled()
    time.now = FAILURES_WITHIN_S
    assert not sign_in.is_throttled()


def test_signing_in_sets_a_cookie_that_scripts_cannot_read(memory: Store) -> None:
    sign_in = SignIn(Principal("ann", ViewerRole.OPERATE))
    dashboard = Dashboard(memory, sign_in=sign_in)
    client = Client(dashboard, follow_redirects=False)
    assert client.get("/").headers["location"] == "/sign-in"
    assert client.get("/jobs", headers={"Leasemill-Part": "1"}).status_code == 401
    assert client.get("/events").headers["location"] == "/sign-in"
    assert client.get("/sign-in").status_code == 200
    assert client.get("/sign-in?token=wrong").status_code == 403
    response = client.get(f"/sign-in?token={sign_in.new_token()}")
    assert response.status_code == 303
    cookie = next(one for one in response.headers.get_list("set-cookie") if one.startswith("leasemill_session"))
    assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    assert client.get("/").status_code == 200
    token = parsed(client.get("/").text).value("form_token")
    assert client.post("/sign-out", data={"form_token": token}, headers=OURS).status_code == 303
    assert client.get("/").status_code == 303
    dashboard.close()


def test_the_sign_in_page_refuses_while_guesses_are_slowed_down(memory: Store) -> None:
    sign_in = SignIn(Principal("ann"))
    dashboard = Dashboard(memory, sign_in=sign_in)
    client = Client(dashboard, follow_redirects=False)
    for _ in range(FAILURES_ALLOWED):
        client.get("/sign-in?token=guess")
    assert client.get(f"/sign-in?token={sign_in.new_token()}").status_code == 429
    dashboard.close()


@pytest.mark.parametrize(("site", "is_secure"), [("http://testserver", False), ("https://testserver", True)])
def test_cookies_are_for_tls_alone_where_there_is_tls(memory: Store, site: str, is_secure: bool) -> None:
    memory.enqueue([JobSpec("one", "mail", "send")])
    sign_in = SignIn(Principal("ann", ViewerRole.OPERATE))
    dashboard = Dashboard(memory, sign_in=sign_in)
    client = Client(dashboard, base_url=site, follow_redirects=False)
    responses = [client.get(f"/sign-in?token={sign_in.new_token()}"), client.get(PAUSE)]
    form = {"form_token": parsed(responses[-1].text).value("form_token"), "reason": "x"}
    responses.append(client.post(PAUSE, data=form, headers={"Origin": site}))
    cookies = [one for response in responses for one in response.headers.get_list("set-cookie")]
    names = {one.partition("=")[0] for one in cookies}
    assert names == {"leasemill_session", "leasemill_form", "leasemill_notice"}
    assert all(("; Secure" in one) == is_secure for one in cookies)
    dashboard.close()


async def test_a_form_that_does_not_end_is_given_up(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasemill.dashboard.forms.READ_WITHIN_S", 0.01)
    dashboard = Dashboard(memory, sign_in=SignIn(Principal("ann")))

    async def endless() -> AsyncIterator[bytes]:
        yield b"token="
        await asyncio.Event().wait()

    transport = httpx.ASGITransport(dashboard)
    async with asyncio.timeout(60), httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        response = await client.post("/sign-in", content=endless(), headers=OURS)
    assert response.status_code == 408
    assert "did not arrive in time" in response.text
    await asyncio.to_thread(dashboard.close)


# The caller's own authorisation ----------------------------------------------------------------------------------


def test_whoever_is_not_authorised_sees_nothing(memory: Store) -> None:
    async def nobody(_request: Request) -> Principal | None:
        return None

    dashboard = asgi(memory, authorize=nobody)
    client = Client(dashboard)
    for path in ("/", "/jobs", "/queues", "/job?id=one", "/events", "/download?id=one&part=payload", PAUSE):
        assert client.get(path).status_code == 403
    dashboard.close()


def test_a_dashboard_needs_to_know_who_looks(memory: Store) -> None:
    with pytest.raises(Invalid, match="needs authorize or sign_in"):
        Dashboard(memory)


def test_signing_out_is_offered_where_there_are_sessions_of_ours(memory: Store, desk: Desk) -> None:
    assert "/sign-out" not in desk.client.get("/").text
    token = desk.get(PAUSE).value("form_token")
    assert desk.client.post("/sign-out", data={"form_token": token}, headers=OURS).status_code == 404
    sign_in = SignIn(Principal("ann"))
    dashboard = Dashboard(memory, sign_in=sign_in)
    client = Client(dashboard)
    assert "/sign-out" in client.get(f"/sign-in?token={sign_in.new_token()}").text
    dashboard.close()


def test_a_reader_sees_no_act_and_cannot_act(memory: Store) -> None:
    memory.enqueue([JobSpec("one", "mail", "send")])
    desk = desk_on(memory, ViewerRole.READ)
    for path in ("/queues", "/jobs", "/job?id=one"):
        assert [one for one in desk.get(path).elements if "data-act" in one.attributes] == []
    assert "your role is read" in desk.get(PAUSE, 403).text
    form = {"form_token": token_of(desk.client.cookie(COOKIE)), "reason": "because"}
    assert desk.client.post(PAUSE, data=form, headers=OURS).status_code == 403
    assert not is_paused(memory)
    desk.dashboard.close()


# Forms -----------------------------------------------------------------------------------------------------------


def test_a_form_of_ours_is_done(desk: Desk, memory: Store) -> None:
    desk.act(PAUSE)
    assert is_paused(memory)
    (action,) = memory.actions()
    assert (action.by, action.reason, action.target) == ("ann", "because", "mail")


def test_a_form_without_its_token_is_refused(desk: Desk, memory: Store) -> None:
    desk.get(PAUSE)
    for form in ({"reason": "x"}, {"reason": "x", "form_token": "wrong"}, {"reason": "x", "form_token": "ü"}):
        assert desk.client.post(PAUSE, data=form, headers=OURS).status_code == 403
    assert not is_paused(memory)


def test_a_token_of_another_browser_is_refused(desk: Desk, memory: Store) -> None:
    token = desk.get(PAUSE).value("form_token")
    other = Client(desk.dashboard)
    other.get(PAUSE)
    assert other.post(PAUSE, data={"reason": "x", "form_token": token}, headers=OURS).status_code == 403
    assert (
        Client(desk.dashboard).post(PAUSE, data={"reason": "x", "form_token": token}, headers=OURS).status_code == 403
    )
    assert not is_paused(memory)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://testserver.evil.example"},
        {"Origin": "http://testserver:81"},
        {"Origin": "http://testserver", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://testserver", "Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_form_of_another_origin_is_refused(desk: Desk, memory: Store, headers: dict[str, str]) -> None:
    token = desk.get(PAUSE).value("form_token")
    response = desk.client.post(PAUSE, data={"reason": "x", "form_token": token}, headers=headers)
    assert response.status_code == 403
    assert not is_paused(memory)


def test_a_named_origin_is_ours(memory: Store) -> None:
    memory.enqueue([JobSpec("one", "mail", "send")])
    who = Principal("ann", ViewerRole.OPERATE)
    dashboard = asgi(memory, authorize=lambda _request: who, origins=["https://jobs.example.com"])
    client = Client(dashboard, follow_redirects=False)
    token = parsed(client.get(PAUSE).text).value("form_token")
    headers = {"Origin": "https://jobs.example.com"}
    assert client.post(PAUSE, data={"reason": "x", "form_token": token}, headers=headers).status_code == 303
    dashboard.close()


def test_an_act_needs_a_reason(desk: Desk, memory: Store) -> None:
    page = desk.act(PAUSE, 400, reason="  ")
    assert "A reason is required" in page.text
    assert not is_paused(memory)


def test_a_large_form_is_refused(desk: Desk) -> None:
    token = desk.get(PAUSE).value("form_token")
    form = {"reason": "x" * 300_000, "form_token": token}
    assert desk.client.post(PAUSE, data=form, headers=OURS).status_code == 413


def test_an_act_is_not_done_by_a_link(desk: Desk, memory: Store) -> None:
    desk.get(f"{PAUSE}&reason=because&form_token={desk.get(PAUSE).value('form_token')}")
    assert not is_paused(memory)


@pytest.mark.parametrize("where", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_after_an_act_nobody_is_sent_to_another_site(desk: Desk, where: str) -> None:
    token = desk.get(PAUSE).value("form_token")
    response = desk.client.post(
        PAUSE,
        params={"queue": "mail", "next": where},
        data={"reason": "x", "form_token": token},
        headers=OURS,
        follow_redirects=False,
    )
    assert response.headers["location"] == "/"


# What surrounds every answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/jobs", "/nothing-here", "/job?id=nobody", "/sign-in", "/download?id=one&part=payload"]
)
def test_every_answer_binds_the_browser(desk: Desk, path: str) -> None:
    headers = desk.client.get(path).headers
    assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "unsafe" not in CONTENT_SECURITY_POLICY


def test_pages_have_no_inline_script_or_style(desk: Desk) -> None:
    for path in ("/", "/jobs", "/queues", "/job?id=one", PAUSE):
        for one in desk.get(path).elements:
            assert one.tag != "style"
            assert one.tag != "script" or (one.text == "" and one.attributes["src"].startswith("/assets/"))
            assert not {name for name in one.attributes if name.startswith("on") or name == "style"}


def test_pages_load_nothing_from_elsewhere(desk: Desk) -> None:
    for path in ("/", "/jobs", "/job?id=one"):
        for one in desk.get(path).elements:
            for name in ("src", "href", "action", "formaction", "data-events"):
                assert one.attributes.get(name, "/").startswith(("/", "#")), one
                assert not one.attributes.get(name, "/").startswith("//")


def test_assets_are_served_and_may_be_kept(desk: Desk) -> None:
    page = desk.get("/")
    (script,) = page.find("script")
    response = desk.client.get(script.attributes["src"])
    assert response.status_code == 200
    assert "immutable" in response.headers["cache-control"]
    assert desk.client.get("/assets/x/../../app.py").status_code == 404
    assert desk.client.get("/assets/x/app.py").status_code == 404


def test_only_the_named_hosts_are_answered_for(memory: Store) -> None:
    dashboard = Dashboard(memory, authorize=lambda _request: Principal("ann"), hosts=["127.0.0.1:7412"])
    assert Client(dashboard, base_url="http://127.0.0.1:7412").get("/").status_code == 200
    for host in ("http://evil.example", "http://127.0.0.1", "http://127.0.0.1:7413"):
        assert Client(dashboard, base_url=host).get("/").status_code == 421
    dashboard.close()


def test_it_works_under_a_path_of_another_application(memory: Store) -> None:
    memory.enqueue([JobSpec("one", "mail", "send")])
    dashboard = asgi(memory, authorize=lambda _request: Principal("ann", ViewerRole.OPERATE))
    client = Client(Starlette(routes=[Mount("/admin/jobs", dashboard)]), follow_redirects=False)
    page = parsed(client.get("/admin/jobs/queues").text)
    (pause,) = [one for one in page.find("a") if one.text == "Pause"]
    assert pause.attributes["href"].startswith("/admin/jobs/acts/pause-queue?")
    token = parsed(client.get(pause.attributes["href"]).text).value("form_token")
    response = client.post(pause.attributes["href"], data={"reason": "x", "form_token": token}, headers=OURS)
    assert response.headers["location"] == "/admin/jobs/queues"
    assert client.get(page.find("script")[0].attributes["src"]).status_code == 200
    assert is_paused(memory)
    dashboard.close()
