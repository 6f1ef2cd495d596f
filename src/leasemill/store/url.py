"""Which store a program means, and how its URL is shown."""

from __future__ import annotations

import os
import re
from typing import Final

URL_VARIABLE: Final = "LEASEMILL_URL"
DEFAULT_URL: Final = "file:./.leasemill"
ACCOUNT: Final = re.compile(r"^([^:]*:/*[^:@/?]*):.*@", re.DOTALL)
TOKEN: Final = re.compile(r"^(https?:/*)[^/?#]*@", re.DOTALL)
SECRET_OPTION: Final = re.compile(r"(?i)(\w*(?:password|passwd|secret))\s*=[^&]*")


def hidden_password(url: str) -> str:
    """A store's URL as it may be shown: rather too much is hidden than too little, also in one that is wrong."""
    if url.startswith("file:"):
        return url
    url = TOKEN.sub(r"\1***@", url)
    return SECRET_OPTION.sub(r"\1=***", ACCOUNT.sub(r"\1:***@", url))


def choose_url(url: str | None = None) -> str:
    """The store to use: the one named explicitly, else the environment's, else a folder in the working directory."""
    return url if url is not None else os.environ.get(URL_VARIABLE) or DEFAULT_URL
