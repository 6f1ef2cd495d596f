import click
import pytest

from leasemill.cli.quantities import as_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("500MB", 500_000_000), ("2GiB", 2 * 2**30), ("1.5 kb", 1_500), ("64mib", 64 * 2**20), ("10B", 10)],
)
def test_a_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    assert as_size(text) == size
    assert as_size(str(as_size(text))) == size


@pytest.mark.parametrize("text", ["500", "MB", "-1MB", "0GB", "5 apples", ""])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="for example 500MB or 2GiB"):
        as_size(text)
