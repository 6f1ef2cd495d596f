"""Where a server is, and what proves who asks. The token is in no name, log or error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from leasemill.errors import Invalid

TOKEN_VARIABLE: Final = "LEASEMILL_TOKEN"
TOKEN_FILE_VARIABLE: Final = "LEASEMILL_TOKEN_FILE"


class ServerAddress(NamedTuple):
    """`base`: without the user, without a slash at its end."""

    base: str
    token: str | None
    token_file: Path | None = None

    def current_token(self) -> str | None:
        """Return the token; one in a file may change while the program runs."""
        return self.token if self.token_file is None else read_token(self.token_file)


def parse_address(url: str) -> ServerAddress:
    """`http://[TOKEN@]HOST[:PORT][/PREFIX]`; the token of the URL, else of the environment, else of a file."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError as error:
        raise Invalid(f"the URL of the server is not valid: {error}") from None
    if not parts.hostname:
        raise Invalid("the URL of the server names no host: write http://HOST:PORT, for example http://127.0.0.1:7411")
    if parts.query or parts.fragment:
        raise Invalid("the URL of a server has no options: write http://HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    base = f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"
    token = unquote(parts.password or parts.username or "") or os.environ.get(TOKEN_VARIABLE)
    file = os.environ.get(TOKEN_FILE_VARIABLE)
    if token or not file:
        return ServerAddress(base, _checked(token) if token else None)
    read_token(Path(file))
    return ServerAddress(base, None, Path(file))


def read_token(path: Path) -> str:
    try:
        return _checked(path.read_text().strip())
    except OSError as error:
        raise Invalid(f"{TOKEN_FILE_VARIABLE} names a file that cannot be read: {error}") from None


def _checked(token: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise Invalid("the server token is empty or contains invalid characters: check its source")
    return token
