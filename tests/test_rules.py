"""Every rule of the contract and of the log format is named by a test; nobody mentions a rule that is in neither."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasemill.testing.rules import rule
from tests.rule_coverage import Mention, cited_rules, disagreements, named_rules, stated_rules

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "docs" / "contract.md", ROOT / "docs" / "log-format.md"]

SMALL_CONTRACT = """
# The contract

## Lease

**L1** A lease ends, see **L2** for when.

- **L2** Time revokes ownership, X9 or not.

### X1 One commit

The word L7 in a sentence states nothing, nor does **E** alone.
"""

SMALL_TESTS = '''
@rule("L1")
def test_one() -> None:
    """@rule("L8") in a text names nothing."""

class TestTwo:
    @pytest.mark.slow
    @rules.rule("L2", "X1")
    async def test_three(self) -> None: ...
'''

SMALL_SOURCE = """
now = 3  # L2: time revokes ownership
# X1, L1: both of them
text = "# L9: in a string"
# L5 is mentioned here in passing, not cited
# X1
"""


def mentions(read: Callable[[str, str], Iterator[Mention]], *folders: str) -> list[Mention]:
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [mention for path in paths for mention in read(path.read_text(), str(path.relative_to(ROOT)))]


def small_named() -> list[Mention]:
    return list(named_rules(SMALL_TESTS, "test_small.py"))


def test_contract_tests_and_code_speak_of_the_same_rules() -> None:
    stated = [rule_id for document in DOCUMENTS for rule_id in stated_rules(document.read_text())]
    assert {rule_id[0] for rule_id in stated} >= {"L", "W"}, "a document states no rule"
    named = mentions(named_rules, "tests", "src/leasemill/testing")
    found = disagreements(stated, named, mentions(cited_rules, "src"))
    assert not found, "\n" + "\n".join(found)


def test_rules_are_read_where_they_are_stated() -> None:
    assert stated_rules(SMALL_CONTRACT) == ["L1", "L2", "X1"]


def test_rules_are_read_from_decorators_only() -> None:
    assert [(mention.rule_id, mention.place) for mention in small_named()] == [
        ("L1", "test_small.py:2"),
        ("L2", "test_small.py:8"),
        ("X1", "test_small.py:8"),
    ]


def test_a_rule_id_that_is_not_written_out_is_refused() -> None:
    with pytest.raises(ValueError, match=r"test_small\.py:1: @rule takes rule ids"):
        list(named_rules("@rule(FIRST)\ndef test_one(): ...\n", "test_small.py"))


def test_rules_are_read_from_comments_that_cite() -> None:
    found = cited_rules(SMALL_SOURCE, "small.py")
    assert [(mention.rule_id, mention.place) for mention in found] == [
        ("L2", "small.py:2"),
        ("X1", "small.py:3"),
        ("L1", "small.py:3"),
        ("X1", "small.py:6"),
    ]


def test_agreement_is_silent() -> None:
    cited = cited_rules(SMALL_SOURCE, "small.py")
    assert disagreements(stated_rules(SMALL_CONTRACT), small_named(), cited) == []


def test_a_rule_no_test_names_is_found() -> None:
    assert disagreements(["L1", "L2", "X1", "N1"], small_named(), []) == ["N1 is named by no test"]


def test_a_rule_stated_twice_is_found() -> None:
    assert disagreements(["L1", "L2", "X1", "L2"], small_named(), []) == ["L2 is stated 2 times"]


def test_a_rule_that_only_a_test_knows_is_found() -> None:
    assert disagreements(["L1", "L2"], small_named(), []) == [
        "test_small.py:8 names X1, which the contract does not have"
    ]


def test_a_rule_that_only_a_comment_knows_is_found() -> None:
    found = disagreements(["L1", "L2", "X1"], small_named(), [Mention("L9", "small.py:4")])
    assert found == ["small.py:4 cites L9, which the contract does not have"]


def test_the_decorator_keeps_the_rules_and_returns_the_same_test() -> None:
    def test() -> None: ...

    assert rule("L3", "X1")(test) is test
    assert vars(test)["__rules__"] == ("L3", "X1")
