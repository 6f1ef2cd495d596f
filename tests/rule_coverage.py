"""Which rules the contract states, which the tests name, which the code cites; and where the three disagree.

Everything is read from text, nothing is imported: a test that cannot be imported still names its rules.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

RULE_ID = r"[A-Z]\d+"
STATED = re.compile(rf"^\s*(?:[-*]\s+|#+\s+|\d+\.\s+)?\*\*({RULE_ID})\*\*|^#+\s+({RULE_ID})\b", re.MULTILINE)
CITED = re.compile(rf"^#\s*({RULE_ID}(?:\s*,\s*{RULE_ID})*)\s*(?::|$)")


@dataclass(frozen=True, slots=True)
class Mention:
    """A rule id and the place, `file:line`, that names it."""

    rule_id: str
    place: str


def stated_rules(contract: str) -> list[str]:
    """Rule ids in the order the contract states them, one per statement."""
    return [bold or heading for bold, heading in STATED.findall(contract)]


def named_rules(source: str, name: str) -> Iterator[Mention]:
    """Rules named by `@rule("L3", …)` on a function or class."""
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                yield from _decorator_rules(decorator, name)


def _decorator_rules(decorator: ast.expr, name: str) -> Iterator[Mention]:
    if not isinstance(decorator, ast.Call):
        return
    function = decorator.func
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    if called != "rule":
        return
    place = f"{name}:{decorator.lineno}"
    for argument in decorator.args:
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            raise ValueError(f"{place}: @rule takes rule ids written out as strings")
        yield Mention(argument.value, place)


def cited_rules(source: str, name: str) -> Iterator[Mention]:
    """Rules cited by comments: `# L3: time revokes ownership`, `# L3, X1: …`, `# L3`."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (match := CITED.match(token.string)):
            for rule_id in re.findall(RULE_ID, match[1]):
                yield Mention(rule_id, f"{name}:{token.start[0]}")


def disagreements(stated: Iterable[str], named: Iterable[Mention], cited: Iterable[Mention]) -> list[str]:
    """One sentence per rule that is stated twice, proved by no test, or mentioned but not stated."""
    counts = Counter(stated)
    named = list(named)
    proved = {mention.rule_id for mention in named}
    return [
        *(f"{rule_id} is stated {count} times" for rule_id, count in counts.items() if count > 1),
        *(f"{rule_id} is named by no test" for rule_id in counts if rule_id not in proved),
        *(
            f"{mention.place} names {mention.rule_id}, which the contract does not have"
            for mention in named
            if mention.rule_id not in counts
        ),
        *(
            f"{mention.place} cites {mention.rule_id}, which the contract does not have"
            for mention in cited
            if mention.rule_id not in counts
        ),
    ]
