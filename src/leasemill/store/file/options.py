"""The options of a folder, and its URL: `file:PATH?option=value`."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Struct

from leasemill.errors import Invalid
from leasemill.store.url import check_numbers


class FileOptions(Struct, frozen=True):
    """The options of one process. They are best the same for all processes of a folder, but each may have its own."""

    segment_bytes: int = 16 * 1024 * 1024
    snapshot_bytes: int = 64 * 1024 * 1024
    lock_timeout_s: float = 10.0
    retain_for_s: float = 24 * 3600
    retain_count: int = 1_000_000
    keep_segments: bool = False
    does_maintenance: bool = True


OPTIONS: Final = ", ".join(FileOptions.__struct_fields__)


def parse_folder_url(url: str) -> tuple[Path, FileOptions]:
    rest = url.removeprefix("file:")
    place, _, query = rest.partition("?")
    if place.startswith("//"):
        rest = place.removeprefix("//")
        if not rest.startswith("/"):
            raise Invalid(
                f"{url!r}: between // and the next / is a machine's name; write file:{rest} for a path from the "
                f"working directory, file:///{rest.removeprefix('./')} for one from the root"
            )
        place = rest
    place = unquote(place)
    if not place:
        raise Invalid(f"{url!r} names no folder: write file:./jobs or file:/var/lib/jobs")
    try:
        options = msgspec.convert(dict(parse_qsl(query, strict_parsing=bool(query))), FileOptions, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise Invalid(f"{url!r}: {error}; the options are {OPTIONS}") from None
    unknown = {name for name, _ in parse_qsl(query)} - set(FileOptions.__struct_fields__)
    if unknown:
        raise Invalid(f"{url!r} has an unknown option {min(unknown)!r}; the options are {OPTIONS}")
    check_numbers(options, {})
    return Path(place), options
