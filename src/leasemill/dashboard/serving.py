"""From a request to a response: threads for what blocks, templates for what is shown, notices of what was done."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import quote, unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from leasemill.dashboard import forms
from leasemill.dashboard.navigation import SECTIONS, badges
from leasemill.dashboard.rendering import assets, context_urls, digest_of, environment
from leasemill.dashboard.sampling import Sampler
from leasemill.dashboard.viewing import Page, Viewing

P = ParamSpec("P")
T = TypeVar("T")

PART_HEADER: Final = "leasemill-part"
"""Sent by our script: only what is inside the frame is wanted."""
NOTICE: Final = "leasemill_notice"
THEME: Final = "leasemill_theme"
THEMES: Final = ("light", "dark")
FIRST_SAMPLE_S: Final = 2.0
LONGEST_NOTICE: Final = 1_000
PARTS_KEPT: Final = 32
TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


async def in_thread(
    threads: ThreadPoolExecutor | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call it in one of these threads, or in one of the loop's own."""
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
    """A path of this dashboard and nothing else: never another site."""
    is_local = path is not None and path.startswith("/") and not path.startswith("//") and "\\" not in path
    return path if path is not None and is_local and path.isprintable() else "/"


def set_notice(response: Response, sentence: str) -> None:
    response.set_cookie(
        NOTICE, quote(sentence[:LONGEST_NOTICE]), httponly=True, samesite="strict", path="/", max_age=60
    )


def _cookie(request: Request) -> str:
    """That a browser's forms are bound to: the one it has, or a new one."""
    if not hasattr(request.state, "form_cookie"):
        request.state.form_cookie = request.cookies.get(forms.COOKIE) or forms.new_cookie()
    return str(request.state.form_cookie)


def _notice(request: Request) -> str:
    return "" if is_part(request) else unquote(request.cookies.get(NOTICE, ""))[:LONGEST_NOTICE]


class KeptParts:
    """The latest parts that were rendered, for others who look at the same; safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: OrderedDict[Hashable, str] = OrderedDict()

    def get(self, key: Hashable) -> str | None:
        with self._lock:
            return self._parts.get(key)

    def put(self, key: Hashable, body: str) -> None:
        with self._lock:
            self._parts[key] = body
            while len(self._parts) > PARTS_KEPT:
                self._parts.popitem(last=False)


class Renderer:
    """Renders templates, and serves what they load."""

    def __init__(self) -> None:
        self._templates = environment()
        self._assets = assets()
        self._digest = digest_of(self._assets)
        self._kept = KeptParts()

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        content = self._assets.get(name)
        if content is None:
            raise HTTPException(404, "There is no such file.")
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(content, media_type=TYPES[PurePosixPath(name).suffix], headers=headers)

    def page(self, request: Request, viewing: Viewing, page: Page) -> Response:
        """Read and rendered in one go, in a thread; a part that shows the sample alone is kept until the next one."""
        is_kept = page.is_sampled and is_part(request)
        sample = viewing.sample
        number = None if sample is None else sample.number
        key = (page.name, request.scope.get("root_path", ""), str(request.query_params), viewing.principal, number)
        body = self._kept.get(key) if is_kept else None
        if body is None:
            found = page.read(viewing)
            fields = {"title": page.title, **found, "page": page}
            body = self._body(request, page.template, viewing, fields)
            if is_kept:
                self._kept.put(key, body)
        return self._response(request, body, 200)

    def failed(self, request: Request, status: int, trouble: str) -> Response:
        return self.render(request, "failed.html", status=status, title=f"Error {status}", trouble=trouble)

    def render(
        self, request: Request, template: str, *, viewing: Viewing | None = None, status: int = 200, **fields: Any
    ) -> Response:
        return self._response(request, self._body(request, template, viewing, fields), status)

    def _body(self, request: Request, template: str, viewing: Viewing | None, fields: Mapping[str, Any]) -> str:
        root = request.scope.get("root_path", "")
        path = request.scope["path"].removeprefix(root) or "/"
        sample = None if viewing is None else viewing.sample
        context: dict[str, Any] = {
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
            "viewing": viewing,
            "principal": None if viewing is None else viewing.principal,
            "sample": sample,
            "now": 0 if sample is None else sample.at,
            "store_trouble": None if viewing is None else viewing.sampler.trouble,
            "sections": SECTIONS,
            "badges": badges(sample),
        }
        if "now" in fields:
            context["now"] = fields["now"]
        return self._templates.get_template(template).render(context)

    def _response(self, request: Request, body: str, status: int) -> Response:
        response: Response = HTMLResponse(body, status_code=status)
        if is_part(request) and status == 200:
            tag = f'"{blake2b(body.encode(), digest_size=12).hexdigest()}"'
            if request.headers.get("if-none-match") == tag:
                response = Response(status_code=304)
            response.headers["ETag"] = tag
        if (cookie := _cookie(request)) != request.cookies.get(forms.COOKIE):
            response.set_cookie(forms.COOKIE, cookie, httponly=True, samesite="strict", path="/")
        if _notice(request):
            response.delete_cookie(NOTICE, httponly=True, samesite="strict", path="/")
        return response
