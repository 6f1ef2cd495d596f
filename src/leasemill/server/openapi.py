"""The reference as OpenAPI 3.1, made from the types that are decoded and encoded: it cannot be out of date."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec
from msgspec.json import schema_components

from leasemill import __version__
from leasemill.wire.codec import CODECS
from leasemill.wire.problems import PROBLEM_TYPE, REFUSALS, Problem
from leasemill.wire.routes import ROUTES, Role, Route

REFERENCE: Final = "#/components/schemas/{name}"
REQUEST_SUFFIX: Final = "Request"

PROBLEMS: Final = {
    400: "The body is not JSON, or the request is not HTTP.",
    401: "The key is missing or unknown.",
    403: "The key does not allow this.",
    404: "Not found.",
    405: "Every command is a POST.",
    408: "The body took too long to arrive.",
    409: "Refused: `reason` gives the cause; `answer`, if present, gives it per item.",
    413: "The body is too large: send several calls.",
    415: "The body is not announced as `application/json`.",
    421: "The name in the Host header is not one of this server.",
    422: "A field is wrong: `field` names it, `limit` gives the allowed range. Nothing happened.",
    429: "Too many requests: wait for `Retry-After`.",
    431: "The head of the request is too large.",
    500: "The server failed, its log has the reason: unknown whether it happened.",
    503: "The store cannot be reached: repeat the same request after `Retry-After` seconds. If `reason` is `broken`, "
    "there is no `Retry-After`: an operator must look at the store.",
}
"""The statuses that any command may have instead of 200."""


@cache
def written() -> bytes:
    """The whole description, as it is sent."""
    return msgspec.json.encode(document())


@cache
def document() -> dict[str, Any]:
    """The whole description."""
    requests = [CODECS[route.name].request_type for route in ROUTES]
    answers = [CODECS[route.name].answer_type for route in ROUTES]
    request_schemas, request_components = _components(requests, f"{REFERENCE}{REQUEST_SUFFIX}")
    answer_schemas, answer_components = _components([*answers, Problem], REFERENCE)
    named = {f"{name}{REQUEST_SUFFIX}": schema for name, schema in request_components.items()}
    *answer_schemas, problem_schema = answer_schemas
    paths: dict[str, Any] = {
        route.path: {"post": _operation(route, request, answer, problem_schema)}
        for route, request, answer in zip(ROUTES, request_schemas, answer_schemas, strict=True)
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Leasemill", "version": __version__, "description": DESCRIPTION},
        "paths": paths | _pages(problem_schema),
        "components": {
            "schemas": dict(sorted((named | answer_components).items())),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
        "tags": [{"name": role.value, "description": TAGS[role]} for role in Role],
    }


DESCRIPTION: Final = (
    "Durable jobs, held by a lease. Every command is a POST of JSON to /v1/NAME; commands take many items and answer "
    "for each. Instants are microseconds since the Unix epoch, durations microseconds (`_us`) or seconds (`_s`)."
)
TAGS: Final = {
    Role.PRODUCER: "Enqueue jobs.",
    Role.WORKER: "Claim jobs and report on them.",
    Role.READER: "Look at jobs, queues and workers.",
    Role.OPERATOR: "Cancel, redrive, pause, configure.",
}


NOTES: Final = {
    "enqueue": "Enqueue jobs. An id that is left out is drawn; with an `Idempotency-Key` it follows from that.",
    "claim": (
        "Take at most `limit` jobs of `queues`, in this order of preference; wait up to `wait_s` for the first.\n\n"
        "Tokens and request id are drawn if left out. `kinds`: policies by kind of job. At most `slots` of the "
        "jobs are under a limit, their own or their queue's; null: any number."
    ),
}
"""Descriptions for commands whose own words speak of what is not sent."""


def _components(kinds: list[Any], template: str) -> tuple[list[Any], dict[str, Any]]:
    schemas, components = schema_components(kinds, ref_template=template)
    return [_tidied(one) for one in schemas], {name: _tidied(one) for name, one in components.items()}


def _tidied(schema: Any) -> Any:
    """Return a schema in which a set may have repeats, and texts have no indentation."""
    if isinstance(schema, list):
        return [_tidied(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    tidied = {name: _tidied(one) for name, one in schema.items() if name != "uniqueItems"}
    if isinstance(tidied.get("description"), str):
        tidied["description"] = " ".join(tidied["description"].split())
    return tidied


def _operation(route: Route, request: Any, answer: Any, problem_schema: Any) -> dict[str, Any]:
    text = NOTES.get(route.name) or route.command.__doc__ or ""
    summary, _, more = text.strip().partition("\n\n")
    is_refusable = any(kind.__name__ in str(CODECS[route.name].answer_type) for kind in REFUSALS)
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": _content(answer)}}
    for status, description in PROBLEMS.items():
        headers = {"Retry-After": {"schema": {"type": "integer"}}} if status in {429, 503} else {}
        headers |= {"Allow": {"schema": {"type": "string"}}} if status == 405 else {}
        responses[str(status)] = {
            "description": description,
            "content": {PROBLEM_TYPE: {"schema": problem_schema}},
            **({"headers": headers} if headers else {}),
        }
    return {
        "operationId": route.name,
        "tags": [route.role.value],
        "summary": " ".join(summary.split()) or route.name,
        "description": " ".join(more.split()),
        "parameters": _parameters(route),
        "requestBody": {"required": True, "content": _content(request)},
        "responses": responses,
        "x-refusable": is_refusable,
        "x-repeatable": route.is_repeatable,
    }


def _content(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _parameters(route: Route) -> list[dict[str, Any]]:
    if route.name not in {"enqueue", "claim"}:
        return []
    described = "Makes the call safe to repeat where ids, or the request id, are left to the server."
    schema = {"type": "string", "minLength": 1, "maxLength": 200}
    return [{"name": "Idempotency-Key", "in": "header", "required": False, "description": described, "schema": schema}]


def _pages(problem_schema: Any) -> dict[str, Any]:
    ok = {"200": {"description": "It is.", "content": _content({"type": "object"})}}
    unavailable = {"503": {"description": PROBLEMS[503], "content": {PROBLEM_TYPE: {"schema": problem_schema}}}}
    missing = {"404": {"description": "Not installed.", "content": {PROBLEM_TYPE: {"schema": problem_schema}}}}
    figures = {"200": {"description": "For Prometheus.", "content": {"text/plain": {"schema": {"type": "string"}}}}}

    def page(name: str, summary: str, responses: dict[str, Any]) -> dict[str, Any]:
        return {"get": {"operationId": name, "summary": summary, "responses": responses, "security": [{}]}}

    return {
        "/healthz": page("healthz", "Whether the process answers.", ok),
        "/readyz": page("readyz", "Whether the store answers and the server is not stopping.", ok | unavailable),
        "/metrics": page("metrics", "The server's figures.", figures | missing | unavailable),
        "/openapi.json": page("openapi", "This description.", ok),
    }
