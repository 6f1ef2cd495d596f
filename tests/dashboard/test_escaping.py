"""Whatever callers, workers and operators write, a page shows it as text: its elements and attributes stay the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import quote, urlencode

import pytest

from leasemill.dashboard.pages import PAGES
from leasemill.kernel.model import JobSpec, LimitTerms
from leasemill.store.base import Store
from leasemill.store.memory import MemoryStore
from leasemill.store.presence import MemoryPresence
from leasemill.testing.clock import ManualClock
from tests.dashboard.conftest import Desk, desk_on
from tests.dashboard.filling import fill
from tests.dashboard.filling_control import fill_control

PLAIN = "plain"
HOSTILE = (
    "<script>alert(1)</script>",
    "<SCRIPT SRC=//evil.example/x.js></SCRIPT>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<img src=`x`onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<svg/onload=alert(1)//",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<svg><a xlink:href=javascript:alert(1)><text x=20 y=20>x</text></a></svg>",
    "<math><mtext></p><mglyph><style></math><img src=x onerror=alert(1)>",
    "<body onload=alert(1)>",
    "<iframe src=javascript:alert(1)></iframe>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<object data=javascript:alert(1)></object>",
    "<embed src=javascript:alert(1)>",
    "<form action=javascript:alert(1)><button>x</button></form>",
    "<button formaction=javascript:alert(1)>x</button>",
    "<input autofocus onfocus=alert(1)>",
    "<select autofocus onfocus=alert(1)></select>",
    "<textarea autofocus onfocus=alert(1)></textarea>",
    "<details open ontoggle=alert(1)>",
    "<marquee onstart=alert(1)>x</marquee>",
    "<video><source onerror=alert(1)></video>",
    "<audio src=x onerror=alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "<a href='&#106;avascript:alert(1)'>x</a>",
    "<base href=//evil.example/>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<style>@import '//evil.example/x.css'</style>",
    "<style>*{background:url(//evil.example)}</style>",
    "<table background=javascript:alert(1)>",
    "<template><script>alert(1)</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<xmp><script>alert(1)</script></xmp>",
    "<plaintext>",
    "<!--",
    "--><script>alert(1)</script>",
    "<!--><script>alert(1)</script>-->",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<?xml version='1.0'?><script>alert(1)</script>",
    '"',
    "'",
    '" onmouseover="alert(1)',
    "' onmouseover='alert(1)",
    '" onfocus=alert(1) autofocus="',
    "` onmouseover=alert(1) `",
    '"><script>alert(1)</script>',
    "'><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    '"/><svg onload=alert(1)>',
    '" style="background:url(//evil.example)',
    '" data-act data-live id="content',
    "</pre><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</table></div></main><script>alert(1)</script>",
    "</td></tr><tr data-key=x><td>",
    "</option></select><script>alert(1)</script>",
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "//evil.example/",
    "https://evil.example/",
    "{{ 7 * 7 }}",
    "{% raw %}{{ config }}{% endraw %}",
    "${7*7}",
    "#{7*7}",
    "<%= 7 * 7 %>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "&amp;&quot;&#39;",
    "&",
    "<",
    ">",
    "%3Cscript%3Ealert(1)%3C/script%3E",
    "＜script＞alert(1)＜/script＞",
    "\\x3cscript\\x3ealert(1)\\x3c/script\\x3e",
    "\\u003cscript\\u003ealert(1)",
    "'-alert(1)-'",
    "';alert(1);//",
)


CORNERS = (
    "<script>alert(1)</script>",
    "<img src=`x`onerror=alert(1)>",
    "--><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "' onmouseover='alert(1)",
    "` onmouseover=alert(1) `",
    '" data-act data-live id="content',
    "</table></div></main><script>alert(1)</script>",
    "javascript:alert(1)",
    "//evil.example/",
    "{{ 7 * 7 }}",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
)
"""One for each way out of a text: an element, a comment, an attribute in every kind of quotes or none, an address, a
template, an entity. They are put into every page; the others into every eighth, each beginning with another, and into
every page too by `make browser`."""
SHARE = 1 if os.environ.get("LEASEMILL_FULL_ESCAPING") else 8


def test_there_are_enough_of_them() -> None:
    assert len(set(HOSTILE)) >= 80
    assert set(CORNERS) < set(HOSTILE)


def filled_desk(store: Store, text: str) -> Desk:
    fill(store, text)
    fill_control(store, text)
    store.enqueue([JobSpec(text, "mail", "send")])
    store.set_limit("queue:mail", LimitTerms(4), by=f"ann {text}", reason=f"reason {text}")
    store.pause("mail", by=f"ann {text}", reason=f"reason {text}")
    desk = desk_on(store)
    desk.dashboard.open().sample()
    return desk


def addresses(text: str) -> Iterator[str]:
    """Every page, with the text in every field of an address that is shown."""
    yield from (page.path for page in PAGES if page.section is not None)
    yield "/sweeps"
    yield f"/jobs?{urlencode(dict.fromkeys(('id', 'kind', 'lane', 'error', 'header', 'group', 'unique'), text))}"
    yield f"/jobs?{urlencode({'queue': text, 'cursor': text, 'other': text})}"
    for job_id in ("succeeded-1", "failed-1", "leased-1", "zombie-1", "behind-1", "head-1", "cancelled-1", text):
        yield f"/job?{urlencode({'id': job_id})}"
    yield f"/queue?{urlencode({'name': 'mail', 'other': text})}"
    yield f"/leases?{urlencode({'worker': f'worker {text}'[:100], 'queue': 'leased', 'only': text, 'from': text})}"
    yield f"/leases?{urlencode({'worker': text})}"
    yield f"/workers?{urlencode({'worker': f'worker {text}'[:100]})}"
    yield f"/workers?{urlencode({'worker': f'stuck {text}'[:100]})}"
    yield f"/workers?{urlencode({'worker': 'nobody ' + text})}"
    yield f"/failures?{urlencode({'queue': 'mail', 'other': text})}"
    yield f"/failures?{urlencode({'queue': text, 'kind': text})}"
    yield f"/refusals?{urlencode({'verb': text, 'worker': text})}"
    yield f"/lanes?{urlencode({'queue': 'lanes', 'lane': f'lane {text}'[:200]})}"
    yield f"/lanes?{urlencode({'queue': text, 'only': text})}"
    yield "/schedules?name=report"
    yield "/schedules?name=sweep"
    yield "/groups?show=all"
    yield from (f"/groups?{urlencode({'id': f'{name} {text}'})}" for name in ("group", "inner", "over"))
    yield "/limits?name=api"
    yield "/limits?name=mails"
    yield f"/audit?{urlencode({'by': f'ann {text}', 'from': text})}"
    yield f"/audit?{urlencode({'by': text, 'verb': text, 'target': text})}"
    yield f"/acts/unblock-lane?{urlencode({'queue': 'lanes', 'lane': f'lane {text}'[:200], 'next': '/' + text})}"
    yield f"/acts/resume-schedule?{urlencode({'name': 'sweep', 'other': text})}"
    yield from (f"/acts/{act}-group?{urlencode({'id': f'group {text}'})}" for act in ("cancel", "seal"))
    yield f"/acts/set-limit?{urlencode({'name': 'mails', 'other': text})}"
    yield f"/acts/redrive-all?{urlencode({'fingerprint': text, 'kind': text})}"
    yield f"/acts/pause-queue?{urlencode({'queue': 'mail', 'next': '/' + text, 'other': text})}"
    yield f"/acts/cancel-jobs?{urlencode({'job': [text, 'ready-1']}, doseq=True)}"
    yield f"/acts/cancel-all?{urlencode({'lane': 'lane ' + text, 'header': text})}"


def timeless() -> MemoryStore:
    """Time stands still, so that two pictures of a job have the same ticks and no worker goes silent."""
    store = MemoryStore(ManualClock())
    store.presence = MemoryPresence(lambda: 0.0)
    return store


@pytest.fixture
def memory() -> Iterator[Store]:
    with timeless() as opened:
        yield opened


@pytest.fixture(scope="module")
def plain() -> Iterator[Desk]:
    with timeless() as store:
        desk = filled_desk(store, PLAIN)
        yield desk
        desk.dashboard.close()


@pytest.fixture(scope="module")
def shapes(plain: Desk) -> list[list[tuple[str, tuple[str, ...]]]]:
    """Of all pages, with text that means nothing."""
    return [plain.get(address).shape for address in addresses(PLAIN)]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_changes_no_element(
    memory: Store, shapes: list[list[tuple[str, tuple[str, ...]]]], text: str
) -> None:
    desk = filled_desk(memory, text)
    pages = slice(None) if text in CORNERS else slice(HOSTILE.index(text) % SHARE, None, SHARE)
    for address, shape in list(zip(addresses(text), shapes, strict=True))[pages]:
        page = desk.get(address)
        assert page.shape == shape, address
        for one in page.elements:
            for name in ("href", "src", "action", "formaction"):
                assert one.attributes.get(name, "/").startswith(("/", "#")), (address, one)
    desk.dashboard.close()


@pytest.mark.parametrize("text", HOSTILE[:5])
def test_hostile_text_is_shown_as_it_is(memory: Store, text: str) -> None:
    desk = filled_desk(memory, text)
    page = desk.get("/job?id=failed-1")
    assert f"ValueError: {text}" in page.text
    assert text in desk.get("/job?id=succeeded-1").text
    assert desk.get(f"/job?{urlencode({'id': text})}").find("h1")[0].text == text
    desk.dashboard.close()


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_not_there_is_named_as_text(plain: Desk, text: str) -> None:
    paths = [f"/job?{urlencode({'id': 'nobody ' + text})}", f"/acts/pause-queue?{urlencode({'queue': text})}"]
    paths += [f"/{page}?{urlencode({'name': text})}" for page in ("queue", "schedules", "limits", "acts/run-schedule")]
    paths += [f"/{page}?{urlencode({'id': 'nobody ' + text})}" for page in ("groups", "acts/seal-group")]
    paths += [f"/{page}?{urlencode({'queue': 'mail', 'lane': text})}" for page in ("lanes", "acts/unblock-lane")]
    for path in paths:
        page = plain.get(path, 404)
        assert [one.tag for one in page.elements].count("script") == 1
        assert not [one for one in page.elements if any(name.startswith("on") for name in one.attributes)]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_notice_is_shown_as_text(plain: Desk, text: str) -> None:
    page = plain.get("/", Cookie=f"leasemill_notice={quote(text)}")
    (notice,) = [one for one in page.elements if "data-notice" in one.attributes]
    assert notice.text == text
    assert [one.tag for one in page.elements].count("script") == 1
