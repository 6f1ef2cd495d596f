"""From a request to a response: threads for what blocks, templates for what is shown, notices of what was done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote, unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from leasemill.dashboard import forms
from leasemill.dashboard.actions import ACTIONS
from leasemill.dashboard.jinja_environment import assets, context_urls, digest_of, environment
from leasemill.dashboard.page_cache import PageCache
from leasemill.dashboard.page_types import Page, PageContext
from leasemill.dashboard.pages import SECTIONS, badges
from leasemill.dashboard.sampler import Sampler

P = ParamSpec("P")
T = TypeVar("T")

PART_HEADER: Final = "leasemill-part"
"""Our script sends this header to get only what is inside the frame."""
NOTICE: Final = "leasemill_notice"
THEME: Final = "leasemill_theme"
THEMES: Final = ("light", "dark")
FIRST_SAMPLE_S: Final = 2.0
LONGEST_NOTICE: Final = 1_000
FAILED: Final = {400: "Not possible", 403: "Not allowed", 404: "Not found", 503: "The store does not answer"}
"""The headings of error pages, by status."""
TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


async def in_thread(
    threads: ThreadPoolExecutor | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call the function in one of these threads, or in one of the event loop's."""
    return await asyncio.get_running_loop().run_in_executor(threads, lambda: function(*args, **kwargs))


async def first_sample(sampler: Sampler) -> None:
    """Wait a moment for the first counts: a page without any is of little use."""
    waited_s = 0.0
    while sampler.latest is None and sampler.trouble is None and waited_s < FIRST_SAMPLE_S:
        await asyncio.sleep(0.02)
        waited_s += 0.02


def is_part(request: Request) -> bool:
    return PART_HEADER in request.headers


def local_path(path: str | None) -> str:
    """Return the path if it is one of this dashboard, else `/`: it never leads to another site."""
    is_local = path is not None and path.startswith("/") and not path.startswith("//") and "\\" not in path
    return path if path is not None and is_local and path.isprintable() else "/"


def set_cookie(request: Request, response: Response, name: str, value: str, max_age_s: int | None = None) -> None:
    """Set a cookie that scripts and other sites cannot read. Over TLS, it is not sent without TLS either."""
    is_secure = request.url.scheme == "https"
    response.set_cookie(name, value, httponly=True, samesite="strict", path="/", max_age=max_age_s, secure=is_secure)


def set_notice(request: Request, response: Response, sentence: str) -> None:
    set_cookie(request, response, NOTICE, quote(sentence[:LONGEST_NOTICE]), 60)


def _cookie(request: Request) -> str:
    """Return the cookie that the browser's forms are bound to: the one it has, or a new one."""
    if not hasattr(request.state, "form_cookie"):
        request.state.form_cookie = request.cookies.get(forms.COOKIE) or forms.new_cookie()
    return str(request.state.form_cookie)


def _notice(request: Request) -> str:
    return "" if is_part(request) else unquote(request.cookies.get(NOTICE, ""))[:LONGEST_NOTICE]


class RenderedPart(NamedTuple):
    """The inside of a page's frame, as it is sent to all who look the same way."""

    body: bytes
    tag: str


class Renderer:
    """Renders templates, and serves what they load. `has_sign_out`: users can sign out of their sessions."""

    def __init__(self, *, has_sign_out: bool) -> None:
        self._has_sign_out = has_sign_out
        self._templates = environment()
        self._assets = assets()
        self._digest = digest_of(self._assets)
        self._parts = PageCache()

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        content = self._assets.get(name)
        if content is None:
            raise HTTPException(404, "There is no such file.")
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(content, media_type=TYPES[PurePosixPath(name).suffix], headers=headers)

    def kept_page(self, request: Request, context: PageContext, page: Page) -> Response | None:
        """Return the part of a page that shows the sample alone, if it has been rendered for this sample."""
        if not page.is_sampled or not is_part(request) or context.sample is None:
            return None
        part = self._parts.kept(_part_key(request, context, page), context.sample.number)
        return None if part is None else self._part_response(request, part)

    def page(self, request: Request, context: PageContext, page: Page) -> Response:
        """Read and render a page, in a thread. A part that shows the sample alone is kept until the next one."""
        if not is_part(request):
            return self._response(request, self._page_body(request, context, page), 200)
        if page.is_sampled and context.sample is not None:
            key, number = _part_key(request, context, page), context.sample.number
            part = self._parts.once(key, number, lambda: _rendered(self._page_body(request, context, page)))
        else:
            part = _rendered(self._page_body(request, context, page))
        return self._part_response(request, part)

    def _page_body(self, request: Request, context: PageContext, page: Page) -> str:
        fields = {"title": page.title, **page.read(context), "page": page}
        return self._body(request, page.template, context, fields)

    def failed(self, request: Request, status: int, trouble: str) -> Response:
        """Render an error, within the frame if the user may look."""
        context = getattr(request.state, "context", None)
        title = FAILED.get(status, f"Error {status}")
        return self.render(request, "failed.html", context=context, status=status, title=title, trouble=trouble)

    def render(
        self, request: Request, template: str, *, context: PageContext | None = None, status: int = 200, **fields: Any
    ) -> Response:
        return self._response(request, self._body(request, template, context, fields), status)

    def _body(self, request: Request, template: str, context: PageContext | None, fields: Mapping[str, Any]) -> str:
        root = request.scope.get("root_path", "")
        path = request.scope["path"].removeprefix(root) or "/"
        sample = None if context is None else context.sample
        names: dict[str, Any] = {
            "page": None,
            **fields,
            **context_urls(root, path, request.query_params.multi_items()),
            "layout": "part.html" if is_part(request) else "base.html",
            "root": root,
            "path": path,
            "query": request.query_params,
            "assets": f"{root}/assets/{self._digest}",
            "form_field": forms.FIELD,
            "form_token": forms.token_of(_cookie(request)),
            "theme": theme if (theme := request.cookies.get(THEME)) in THEMES else "",
            "notice": _notice(request),
            "context": context,
            "principal": None if context is None else context.principal,
            "sample": sample,
            "now": 0 if sample is None else sample.at,
            "store_trouble": None if context is None else context.sampler.trouble,
            "has_sign_out": self._has_sign_out,
            "sections": SECTIONS,
            "acts": ACTIONS,
            "badges": badges(sample),
        }
        if "now" in fields:
            names["now"] = fields["now"]
        return self._templates.get_template(template).render(names)

    def _part_response(self, request: Request, part: RenderedPart) -> Response:
        is_known = request.headers.get("if-none-match") == part.tag
        response: Response = Response(status_code=304) if is_known else HTMLResponse(part.body)
        response.headers["ETag"] = part.tag
        return _with_cookie(request, response)

    def _response(self, request: Request, body: str, status: int) -> Response:
        response = _with_cookie(request, HTMLResponse(body, status_code=status))
        if _notice(request):
            response.delete_cookie(NOTICE, httponly=True, samesite="strict", path="/")
        return response


def _rendered(body: str) -> RenderedPart:
    content = body.encode()
    return RenderedPart(content, f'"{blake2b(content, digest_size=12).hexdigest()}"')


def _part_key(request: Request, context: PageContext, page: Page) -> Hashable:
    """Return what the part depends on besides the sample: a store that fails leaves the sample as it was."""
    root, query = request.scope.get("root_path", ""), str(request.query_params)
    return page.name, root, query, context.principal, context.sampler.trouble


def _with_cookie(request: Request, response: Response) -> Response:
    if (cookie := _cookie(request)) != request.cookies.get(forms.COOKIE):
        set_cookie(request, response, forms.COOKIE, cookie)
    return response
