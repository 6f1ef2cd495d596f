"""The URL of a store: which one a program uses, how it is shown without its password, and the numbers in its options.

A number out of bounds is refused when the store is opened, not when it is first used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from leasemill.errors import Invalid
from leasemill.kernel.bounds import LONGEST_US
from leasemill.kernel.model import SECOND

URL_VARIABLE: Final = "LEASEMILL_URL"
DEFAULT_URL: Final = "file:./.leasemill"
ACCOUNT: Final = re.compile(r"^([^:]*:/*[^:@/?]*):.*@", re.DOTALL)
TOKEN: Final = re.compile(r"^(https?:/*)[^/?#]*@", re.DOTALL)
SECRET_OPTION: Final = re.compile(r"(?i)(\w*(?:password|passwd|secret))\s*=[^&]*")
LARGEST: Final = 10**15
LONGEST_S: Final = LONGEST_US // SECOND


def hidden_password(url: str) -> str:
    """Return a store's URL as it may be shown. Rather too much is hidden than too little, also in a wrong URL."""
    if url.startswith("file:"):
        return url
    url = TOKEN.sub(r"\1***@", url)
    return SECRET_OPTION.sub(r"\1=***", ACCOUNT.sub(r"\1:***@", url))


def choose_url(url: str | None = None) -> str:
    """Return the URL to use: the one given, else the environment's, else a folder in the working directory."""
    return url if url is not None else os.environ.get(URL_VARIABLE) or DEFAULT_URL


def check_numbers(options: Struct, most: Mapping[str, int]) -> None:
    """Refuse a number that is negative, infinite, not a number, or more than `most` has for its name."""
    for name in options.__struct_fields__:
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        limit = most.get(name, LONGEST_S if name.endswith("_s") else LARGEST)
        if not 0 <= value <= limit:
            raise Invalid(f"{name} in the store's URL is {value}; write a number from 0 to {limit}")
