"""The application: pages, actions, live updates and assets, behind sign-in or the caller's own authorisation.

    dashboard = asgi(app, authorize=who)      # mount it in FastAPI, Starlette, or beside Django

Handlers here decide who may; what is read and done is in `pages` and `actions`, in threads, so the event loop is never
blocked. What must never happen here: a page for a request without a principal, an action without a checked form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from leasemill.api.app import App
from leasemill.api.redaction import SECRET_KEYS, Redaction
from leasemill.dashboard import responses
from leasemill.dashboard.access import SESSION_S, Authorize, Principal, SignIn
from leasemill.dashboard.actions import ACTIONS
from leasemill.dashboard.bulk_actions import BulkActions
from leasemill.dashboard.forms import read_form
from leasemill.dashboard.live import Streams
from leasemill.dashboard.page_types import Given, OperatorAction, Page, PageContext, Question
from leasemill.dashboard.pages import PAGES
from leasemill.dashboard.pages.job import downloads
from leasemill.dashboard.responses import Renderer
from leasemill.dashboard.sampler import Sampler
from leasemill.dashboard.security_headers import SecurityHeaders
from leasemill.errors import Invalid, LeasemillError, NotFound, Unavailable
from leasemill.store.base import Store

READERS: Final = 4
"""So many threads read the store for pages, however many viewers there are."""


def asgi(
    app_or_store: App | Store,
    *,
    authorize: Authorize,
    redact: Sequence[str] = SECRET_KEYS,
    origins: Collection[str] = (),
) -> Dashboard:
    """The dashboard of an app's store, to mount where you serve other things.

    `authorize` is called for every request and returns a `Principal`, or None for somebody who may not look.
    `redact`: regular expressions; values of payloads, results and headers under a key that one of them is found in are
    not shown. `origins`: how browsers see your site (`https://jobs.example.com`), if a proxy changes the Host header.
    """
    return Dashboard(app_or_store, authorize=authorize, redact=redact, origins=origins)


class Dashboard:
    """An ASGI application. `close` ends its threads, and leaves the store open."""

    def __init__(
        self,
        app_or_store: App | Store,
        *,
        authorize: Authorize | None = None,
        sign_in: SignIn | None = None,
        redact: Sequence[str] = SECRET_KEYS,
        origins: Collection[str] = (),
        hosts: Collection[str] | None = None,
        cookie: str = "leasemill_session",
    ) -> None:
        if (authorize is None) == (sign_in is None):
            raise Invalid("a dashboard needs authorize or sign_in: one of them decides who may look")
        self._given = app_or_store
        self._authorize = authorize
        self._sign_in = sign_in
        self._redaction = Redaction(redact)
        self._origins = frozenset(origins)
        self._cookie = cookie
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="leasemill-dashboard")
        self._opened: tuple[Store, Sampler, BulkActions] | None = None
        self._renderer = Renderer(has_sign_out=sign_in is not None)
        self._streams = Streams()
        self._app = SecurityHeaders(self._routes(), hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def open(self) -> Sampler:
        """Open the store, if it is an app's and not open yet. Called in a thread: it may take a while."""
        if self._opened is None:
            store = self._given.store if isinstance(self._given, App) else self._given
            self._opened = store, Sampler(store), BulkActions(store)
        return self._opened[1]

    @property
    def bulk_actions(self) -> BulkActions:
        """The actions on many jobs that this process runs, or has run."""
        self.open()
        assert self._opened is not None
        return self._opened[2]

    def end_streams(self) -> None:
        """End the live updates. A server that stops waits for open responses, and these have no end."""
        self._streams.end()

    def close(self) -> None:
        if self._opened is not None:
            _, sampler, bulk_actions = self._opened
            bulk_actions.close()
            sampler.close()
        self._readers.shutdown()

    def _routes(self) -> Starlette:
        @asynccontextmanager
        async def lifespan(_app: Starlette) -> Any:
            yield
            await responses.in_thread(None, self.close)

        routes = [
            Route("/sign-in", self._signing_in, methods=["GET", "POST"]),
            Route("/sign-out", self._signing_out, methods=["POST"]),
            Route("/assets/{digest}/{name}", self._renderer.asset),
            Route("/events", self._events),
            Route("/download", self._download),
            Route("/acts/{name}", self._act, methods=["GET", "POST"]),
            *(Route(page.path, self._showing(page), name=page.name) for page in PAGES),
        ]
        handlers: Mapping[Any, Any] = {
            HTTPException: self._failed_http,
            NotFound: self._failed_not_found,
            LeasemillError: self._failed_store,
            OSError: self._failed_system,
        }
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)

    # Who looks ---------------------------------------------------------------------------------------------------

    async def _principal(self, request: Request) -> Principal | None:
        if self._sign_in is not None:
            return self._sign_in.principal(request.cookies.get(self._cookie))
        assert self._authorize is not None
        found = self._authorize(request)
        return await found if inspect.isawaitable(found) else found

    async def _viewing(self, request: Request, *, is_read: bool = True) -> PageContext:
        principal = await self._principal(request)
        if principal is None:
            raise HTTPException(401 if self._sign_in is not None else 403, "You may not look at this dashboard.")
        if self._opened is None:
            await responses.in_thread(self._readers, self.open)
        assert self._opened is not None
        store, sampler, bulk_actions = self._opened
        sampler.watched(is_read=is_read)
        query, params = request.query_params, request.path_params
        context = request.state.context = PageContext(
            store, sampler, bulk_actions, self._redaction, principal, query, params
        )
        return context

    async def _signing_in(self, request: Request) -> Response:
        if self._sign_in is None:
            raise HTTPException(404, "Sign in where this dashboard is mounted.")
        token = request.query_params.get("token", "")
        if request.method == "POST":
            token = (await read_form(request, self._origins)).get("token", "").strip()
        if not token:
            return self._renderer.render(request, "sign_in.html", title="Sign in", trouble="")
        if self._sign_in.is_throttled():
            trouble = "Too many wrong tokens: wait a minute."
            return self._renderer.render(request, "sign_in.html", title="Sign in", trouble=trouble, status=429)
        session = self._sign_in.open(token)
        if session is None:
            trouble = "This link has been used, or a newer one replaced it."
            return self._renderer.render(request, "sign_in.html", title="Sign in", trouble=trouble, status=403)
        response = RedirectResponse(f"{request.scope.get('root_path', '')}/", status_code=303)
        responses.set_cookie(request, response, self._cookie, session, round(SESSION_S))
        return response

    async def _signing_out(self, request: Request) -> Response:
        if self._sign_in is None:
            raise HTTPException(404, "Sign out where this dashboard is mounted.")
        await read_form(request, self._origins)
        self._sign_in.close(request.cookies.get(self._cookie))
        response = RedirectResponse(f"{request.scope.get('root_path', '')}/sign-in", status_code=303)
        response.delete_cookie(self._cookie, httponly=True, samesite="strict", path="/")
        return response

    # Pages -------------------------------------------------------------------------------------------------------

    def _showing(self, page: Page) -> Callable[[Request], Any]:
        async def show(request: Request) -> Response:
            context = await self._viewing(request, is_read=not page.is_estimated)
            if context.sample is None:
                await responses.first_sample(context.sampler)
            kept = self._renderer.kept_page(request, context, page)
            if kept is not None:
                return kept
            return await responses.in_thread(self._readers, self._renderer.page, request, context, page)

        return show

    async def _events(self, request: Request) -> Response:
        context = await self._viewing(request, is_read=False)
        return self._streams.open(context.sampler)

    async def _download(self, request: Request) -> Response:
        context = await self._viewing(request)
        return await responses.in_thread(self._readers, downloads, context)

    # Acts --------------------------------------------------------------------------------------------------------

    async def _act(self, request: Request) -> Response:
        act = ACTIONS.get(request.path_params["name"])
        if act is None:
            raise HTTPException(404, "Unknown action.")
        context = await self._viewing(request)
        if not context.principal.may_act:
            raise HTTPException(403, "You may look but not act: your role is read.")
        if request.method == "POST":
            return await self._done(request, context, act)
        question = await responses.in_thread(self._readers, act.ask, context)
        return self._asking(request, context, act, question)

    async def _done(self, request: Request, context: PageContext, act: OperatorAction) -> Response:
        form = await read_form(request, self._origins)
        given = Given(context.principal.name, form.get("reason", "").strip(), form)
        try:
            if act.asks_why and not given.reason:
                raise Invalid("A reason is required; it is recorded with the action.")
            done = await responses.in_thread(self._readers, act.run, context, given)
            context.sampler.page_cache.forget()
            await responses.in_thread(self._readers, context.sampler.changed)
        except Unavailable:
            raise
        except LeasemillError as error:
            question = await responses.in_thread(self._readers, act.ask, context)
            return self._asking(request, context, act, question, given=given, trouble=str(error), status=400)
        path = done.path or responses.local_path(request.query_params.get("next"))
        response = RedirectResponse(f"{request.scope.get('root_path', '')}{path}", status_code=303)
        responses.set_notice(request, response, done.sentence)
        return response

    def _asking(
        self,
        request: Request,
        context: PageContext,
        act: OperatorAction,
        question: Question,
        *,
        given: Given | None = None,
        trouble: str = "",
        status: int = 200,
    ) -> Response:
        values = {} if given is None else {name: given.text(name) for name in given.form}
        return self._renderer.render(
            request,
            "act.html",
            context=context,
            status=status,
            title=question.heading,
            act=act,
            question=question,
            values=values,
            trouble=trouble,
            cancel_path=responses.local_path(request.query_params.get("next")),
        )

    # What went wrong ---------------------------------------------------------------------------------------------

    async def _failed_http(self, request: Request, error: HTTPException) -> Response:
        if error.status_code == 401 and not responses.is_part(request):
            return RedirectResponse(f"{request.scope.get('root_path', '')}/sign-in", status_code=303)
        is_unrouted = error.status_code == 404 and error.detail == HTTPStatus.NOT_FOUND.phrase
        return self._renderer.failed(
            request, error.status_code, "There is no such page." if is_unrouted else error.detail
        )

    async def _failed_not_found(self, request: Request, error: NotFound) -> Response:
        return self._renderer.failed(request, 404, str(error))

    async def _failed_store(self, request: Request, error: LeasemillError) -> Response:
        status = 503 if isinstance(error, Unavailable) else 400 if isinstance(error, Invalid) else 500
        return self._renderer.failed(request, status, str(error))

    async def _failed_system(self, request: Request, error: OSError) -> Response:
        return self._renderer.failed(request, 503, f"The store cannot be read: {error}")
