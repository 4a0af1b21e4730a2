"""The interface's own description: an OpenAPI 3 document, made from the route table.

Is: every path and method that is served, its parameters, and what each handler says it does. Isn't: schemas of every
body; Pulsar's names are used.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

_PARAMETER = re.compile(r"{(\w+)(?::([^{}]*))?}")
_METHODS = ("get", "put", "post", "delete")


def document(routes: Iterable[tuple[str, str, Any]], version: str) -> dict[str, Any]:
    """routes: (method, path, handler); `*` is every method."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path, handler in routes:
        plain = _PARAMETER.sub(r"{\1}", path)
        operations = paths.setdefault(plain, {})
        for name in _METHODS if method == "*" else (method.lower(),):
            operations.setdefault(name, _operation(name, path, plain, handler))
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


def _operation(method: str, path: str, plain: str, handler: Any) -> dict[str, Any]:
    said = inspect.getdoc(handler) or ""
    refusal = {
        "description": "refused",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}},
    }
    operation: dict[str, Any] = {
        "operationId": f"{method} {plain}",
        "tags": [_tag(plain)],
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": "string", **({"pattern": pattern} if pattern else {})},
            }
            for name, pattern in _PARAMETER.findall(path)
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
