"""What a `file:` URL names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leasemill.errors import Invalid
from leasemill.store.factory import open_store
from leasemill.store.file.options import FileOptions, parse_folder_url
from leasemill.store.file.store import FileStore


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("file://./x", "write file:./x for a path from the working directory, file:///x"),
        ("file://x/y", "write file:x/y for a path from the working directory, file:///x/y"),
    ],
)
def test_a_url_with_two_slashes_is_not_taken_for_an_absolute_path(url: str, advice: str) -> None:
    with pytest.raises(Invalid, match=re.escape(advice)):
        open_store(url)


@pytest.mark.parametrize(("url", "path"), [("file:x", "x"), ("file:/x", "/x"), ("file:///x%20y", "/x y")])
def test_a_url_with_one_or_three_slashes_names_the_path_behind_them(url: str, path: str) -> None:
    assert parse_folder_url(url)[0] == Path(path)


def test_a_url_names_folder_and_options(tmp_path: Path) -> None:
    with open_store(f"file:{tmp_path}/jobs?segment_bytes=4096&keep_segments=true") as store:
        assert isinstance(store, FileStore)
        assert store._runner._options == FileOptions(segment_bytes=4096, keep_segments=True)
    assert (tmp_path / "jobs" / "manifest").exists()


@pytest.mark.parametrize("option", [
    "retain_for_s=inf", "retain_for_s=nan", "retain_count=-1", "lock_timeout_s=-1",
    "segment_bytes=99999999999999999999",
])  # fmt: skip
def test_a_number_that_is_out_of_bounds_is_refused(option: str) -> None:
    name, _, _ = option.partition("=")
    with pytest.raises(Invalid, match=f"{name} in the store's URL is .*; write a number from 0 to"):
        parse_folder_url(f"file:jobs?{option}")
