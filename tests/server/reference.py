"""The page about the commands over HTTP, made from the types: `python -m tests.server.reference` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from leasemill.server.openapi import PROBLEMS, TAGS, document
from leasemill.wire.routes import ROUTES, Role

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "http.md"
HEAD: Final = """# Commands over HTTP

Made from the types the server decodes and encodes (`python -m tests.server.reference`); `/openapi.json` has the same
for programs. Every command is `POST /v1/NAME` with a JSON object, as `application/json`.
[Workers in other languages](../guides/other-languages.md) shows them in use; [the contract](../contract.md) says what
they do.

Fields in **bold** are required. `T?` may be null or left out. `json` is any JSON, embedded as it is.
"""


def page() -> str:
    described = document()
    schemas = described["components"]["schemas"]
    parts = [HEAD, _statuses()]
    for role in Role:
        parts.append(f"## Role {role.value}\n\n{TAGS[role]}\n")
        operations = {route.name: described["paths"][route.path]["post"] for route in ROUTES if route.role is role}
        parts += [_command(name, operation, schemas) for name, operation in operations.items()]
    parts.append("## Types\n")
    parts += [_type(name, schema) for name, schema in schemas.items() if name not in _bodies(described)]
    return "\n".join(parts)


def _statuses() -> str:
    rows = "\n".join(f"| {status} | {text} |" for status, text in {200: "The answer.", **PROBLEMS}.items())
    return f"| status | |\n|---|---|\n{rows}\n"


def _bodies(described: dict[str, Any]) -> set[str]:
    """The types that are a command's own: their fields are in its section."""
    return {_body(described["paths"][route.path]["post"]) for route in ROUTES}


def _body(operation: dict[str, Any]) -> str:
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    return str(schema["$ref"]).rpartition("/")[2]


def _command(name: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    text = " ".join(part for part in (operation["summary"], operation["description"]) if part and part != name)
    repeat = "" if operation["x-repeatable"] else " Each call is recorded: repeated, it is done again."
    lines = [f"### {name}\n"]
    if text or repeat:
        lines.append(f"{text}{repeat}".strip() + "\n")
    lines += [*_fields(schemas[_body(operation)]), f"Answers {_written(answer)}.\n"]
    return "\n".join(lines)


def _type(name: str, schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return f"### {name}\n\nOne of {', '.join(f'`{value}`' for value in schema['enum'])}.\n"
    text = f"{schema['description']}\n" if "description" in schema else ""
    return "\n".join(part for part in (f"### {name}\n", text, *_fields(schema)) if part)


def _fields(schema: dict[str, Any]) -> list[str]:
    properties: dict[str, Any] = schema.get("properties", {})
    if not properties:
        return ["No fields: `{}`.\n"]
    rows = ["| field | type | default |", "|---|---|---|"]
    for name, one in properties.items():
        shown = f"**`{name}`**" if name in schema.get("required", ()) else f"`{name}`"
        default = f"`{_json(one['default'])}`" if one.get("default") is not None else ""
        rows.append(f"| {shown} | {_written(one)} | {default} |")
    return ["\n".join(rows) + "\n"]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _written(schema: dict[str, Any]) -> str:
    """A type in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        present = [one for one in schema["anyOf"] if one.get("type") != "null"]
        words = " or ".join(_written(one) for one in present)
        return words if len(present) == len(schema["anyOf"]) else f"{words}?"
    if "enum" in schema:
        return ", ".join(f'`"{value}"`' for value in schema["enum"])
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            return f"[{', '.join(_written(one) for one in schema['prefixItems'])}]"
        case "array":
            items = _written(schema["items"])
            return f"list of {items}{_bounds(schema, 'minItems', 'maxItems')}"
        case "object":
            values = schema.get("additionalProperties")
            return f"object of {_written(values)}" if isinstance(values, dict) else "object"
        case "string":
            pattern = f", `{schema['pattern']}`" if "pattern" in schema else ""
            return f"string{_bounds(schema, 'minLength', 'maxLength')}{pattern}"
        case "integer" | "number" as kind:
            return f"{kind}{_bounds(schema, 'minimum', 'maximum')}"
        case None:
            return "json"
        case kind:
            return str(kind)


def _bounds(schema: dict[str, Any], least: str, most: str) -> str:
    low, high = schema.get(least), schema.get(most, schema.get("exclusiveMaximum"))
    if (low is None and high is None) or (high == 2**63 - 1 and low != 0):
        return ""
    return f" ({'' if low is None else f'{low:,} '}to {'…' if high is None else f'{high:,}'})"


def main() -> None:
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
