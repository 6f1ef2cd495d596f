"""The numbers in a store's URL: what is out of bounds is refused when it is opened, not when it is first used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from leasemill.errors import Invalid
from leasemill.kernel.bounds import LONGEST_US
from leasemill.kernel.model import SECOND

LARGEST: Final = 10**15
LONGEST_S: Final = LONGEST_US // SECOND


def check_numbers(options: Struct, most: Mapping[str, int]) -> None:
    """None is negative, infinite, not a number, or more than `most` has for its name."""
    for name in options.__struct_fields__:
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        limit = most.get(name, LONGEST_S if name.endswith("_s") else LARGEST)
        if not 0 <= value <= limit:
            raise Invalid(f"{name} in the store's URL is {value}; write a number from 0 to {limit}")
