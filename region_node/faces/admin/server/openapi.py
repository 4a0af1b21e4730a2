"""The interface's own description: an OpenAPI 3 document, made from the route table.

Is: every path and method that is served, its parameters, whose right it is (`x-right`), and what each handler says
it does. Isn't: schemas of every body; Pulsar's names are used.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from region_node.faces.admin.calls.call_rights import PARAMETER, Route

_METHODS = ("get", "put", "post", "delete")


def document(routes: Iterable[Route], version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for row in routes:
        plain = PARAMETER.sub(r"{\1}", row.path)
        operations = paths.setdefault(plain, {})
        for name in _METHODS if row.method == "*" else (row.method.lower(),):
            operations.setdefault(name, _operation(name, row, plain))
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "Heliograph admin",
            "version": version,
            "description": "Pulsar's admin REST v2, and Heliograph's own paths.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {
                "Refusal": {"type": "object", "properties": {"reason": {"type": "string"}}, "required": ["reason"]}
            }
        },
    }


def _operation(method: str, row: Route, plain: str) -> dict[str, Any]:
    said = inspect.getdoc(row.handler) or ""
    refusal = {
        "description": "refused",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}},
    }
    operation: dict[str, Any] = {
        "operationId": f"{method} {plain}",
        "tags": [_tag(plain)],
        "x-right": row.access.value,
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": "string", **({"pattern": pattern} if pattern else {})},
            }
            for name, pattern in PARAMETER.findall(row.path)
        ],
        "responses": {
            "200": {"description": "the answer, as JSON"},
            "204": {"description": "done, or nothing to say"},
            "default": refusal,
        },
    }
    if said:
        operation["summary"] = " ".join(said.partition("\n\n")[0].split())
    if method in ("put", "post"):
        operation["requestBody"] = {"required": False, "content": {"application/json": {"schema": {}}}}
    return operation


def _tag(path: str) -> str:
    parts = [part for part in path.split("/") if part]
    if parts[0] == "heliograph":
        return "heliograph"
    if parts[0] in ("admin", "lookup") and len(parts) > 2:
        return "topics" if parts[2].startswith("{domain") else parts[2].partition("{")[0] or "functions"
    return parts[0]
