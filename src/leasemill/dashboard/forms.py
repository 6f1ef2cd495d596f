"""What a browser sends to have something done, and the proof that one of our own pages sent it.

A form carries a token that only a page rendered for this browser has; the cookie behind it is SameSite=Strict, and the
Origin must be ours. What must never happen here: a form that is read before all three hold.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection
from hashlib import blake2b
from hmac import compare_digest
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.requests import Request

COOKIE: Final = "leasemill_form"
FIELD: Final = "form_token"
LARGEST_BYTES: Final = 256 * 1024
MOST_FIELDS: Final = 2_000
READ_WITHIN_S: Final = 10.0
"""A browser sends a form at once; one that never ends would hold a connection for ever."""


class Form(ImmutableMultiDict[str, str]):
    """The fields of a form, in order."""


def new_cookie() -> str:
    return secrets.token_urlsafe(32)


def token_of(cookie: str) -> str:
    """Return the token that a form has. The cookie cannot be computed from it."""
    return blake2b(b"leasemill form", key=cookie.encode()[:64], digest_size=24).hexdigest()


async def read_form(request: Request, origins: Collection[str]) -> Form:
    """Read a form that one of our pages has sent. Anything else is refused."""
    _check_origin(request, origins)
    try:
        async with asyncio.timeout(READ_WITHIN_S):
            body = await _body(request)
    except TimeoutError:
        raise HTTPException(408, "The form did not arrive in time: send it again.") from None
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None
    form = Form(fields)
    cookie, given = request.cookies.get(COOKIE, ""), form.get(FIELD, "")
    if not cookie or not compare_digest(given.encode(), token_of(cookie).encode()):
        raise HTTPException(403, "This form is out of date: reload the page and try again.")
    return form


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BYTES:
            raise HTTPException(413, "The form is too large.")
    return body


def _check_origin(request: Request, origins: Collection[str]) -> None:
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise HTTPException(403, "Another site sent this request.")
    origin = request.headers.get("origin", "")
    is_ours = origin in origins or (origin != "" and urlsplit(origin).netloc == request.headers.get("host"))
    if not is_ours:
        raise HTTPException(
            403,
            f"The request comes from {origin or 'an unknown origin'}, not from this dashboard. Behind a proxy, name "
            "the origin that browsers see: asgi(..., origins=['https://…']).",
        )
