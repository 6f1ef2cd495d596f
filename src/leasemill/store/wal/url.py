"""`file:PATH?option=value`: what may stand in a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

import msgspec

from leasemill.errors import Invalid
from leasemill.store.wal.store import FileOptions, FileStore

OPTIONS: Final = ", ".join(FileOptions.__struct_fields__)


def open_folder(url: str) -> FileStore:
    path, options = parse_folder_url(url)
    return FileStore(path, options=options)


def parse_folder_url(url: str) -> tuple[Path, FileOptions]:
    rest = url.removeprefix("file:")
    place, _, query = rest.partition("?")
    place = unquote(place.removeprefix("//") if place.startswith("///") else place)
    if not place:
        raise Invalid(f"{url!r} names no folder: write file:./jobs or file:/var/lib/jobs")
    try:
        options = msgspec.convert(dict(parse_qsl(query, strict_parsing=bool(query))), FileOptions, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise Invalid(f"{url!r}: {error}; the options are {OPTIONS}") from None
    unknown = {name for name, _ in parse_qsl(query)} - set(FileOptions.__struct_fields__)
    if unknown:
        raise Invalid(f"{url!r} has an unknown option {min(unknown)!r}; the options are {OPTIONS}")
    return Path(place), options
