"""The interface's own description: an OpenAPI 3 document, made from the route table.

Is: every path and method that is served, its parameters, whose right it is (`x-right`), and what each handler says
it does, takes, and answers. Isn't: a type (`region_node.faces.admin.calls.call_bodies`); Pulsar's names are used.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from heliograph.model.admin_paths import PARAMETER, plain
from region_node.faces.admin.calls.call_bodies import NOTHING, answer_type, body_type, is_optional
from region_node.faces.admin.calls.call_parameters import taken_by
from region_node.faces.admin.calls.call_rights import Route

_METHODS = ("get", "put", "post", "delete")
_QUERY = {bool: {"type": "boolean"}, str: {"type": "string"}, int: {"type": "integer"}, int | None: {"type": "integer"}}


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    described = _Types(routes)
    paths: dict[str, dict[str, Any]] = {}
    for row in routes:
        path = plain(row.path)
        operations = paths.setdefault(path, {})
        for name in _METHODS if row.method == "*" else (row.method.lower(),):
            operations.setdefault(name, _operation(name, row, path, described))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Heliograph admin",
            "version": version,
            "description": "Pulsar's admin REST v2, and Heliograph's own paths.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": described.components},
    }


class Description:
    """The document as it goes out. Anybody may ask for it, and making it takes a third of a second: it is made once, by
    a thread, and every call gets the same bytes.
    """

    def __init__(self, routes: Sequence[Route], version: str) -> None:
        self._routes, self._version = routes, version
        self._making: asyncio.Task[bytes] | None = None

    async def body(self) -> bytes:
        if self._making is None:
            self._making = asyncio.ensure_future(asyncio.to_thread(self._made))
        return await asyncio.shield(self._making)

    def _made(self) -> bytes:
        return json.dumps(document(self._routes, self._version)).encode()


class Refusal(msgspec.Struct):
    reason: str


class _Types:
    """The JSON schemas of what rows take and answer."""

    def __init__(self, rows: Iterable[Route]) -> None:
        found = [kind for row in rows for kind in (body_type(row.handler), answer_type(row.handler))]
        kinds = [Refusal, *(kind for kind in found if kind is not NOTHING)]
        shown, self.components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
        self._shown = {repr(kind): one for kind, one in zip(kinds, shown, strict=True)}

    def of(self, kind: Any) -> dict[str, Any]:
        return {"application/json": {"schema": self._shown[repr(kind)]}}


def _operation(method: str, row: Route, path: str, types: _Types) -> dict[str, Any]:
    said, given, answer = inspect.getdoc(row.handler) or "", body_type(row.handler), answer_type(row.handler)
    operation: dict[str, Any] = {
        "operationId": f"{method} {path}",
        "tags": [_tag(path)],
        "x-right": row.access.value,
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": "string", **({"pattern": pattern} if pattern else {})},
            }
            for name, pattern in PARAMETER.findall(row.path)
        ]
        + [
            {"name": name, "in": "query", "schema": _QUERY[kind]}
            for name, kind in (
                *((one.name, one.of_query) for one in taken_by(row.handler) if one.of_query is not None),
                *((flag, bool) for flag in row.flags),
            )
        ],
        "responses": {"default": {"description": "refused", "content": types.of(Refusal)}},
    }
    if answer is not type(None):
        content = types.of(answer) if row.answer is None else {"application/json": {"schema": row.answer}}
        operation["responses"]["200"] = {"description": "the answer, as JSON", "content": content}
    if answer in (type(None), Any):
        operation["responses"]["204"] = {"description": "done, or nothing to say"}
    if said:
        operation["summary"] = " ".join(said.partition("\n\n")[0].split())
    if row.body is not None:
        operation["requestBody"] = {"required": False, "content": {"application/json": {"schema": row.body}}}
    elif given is not NOTHING:
        operation["requestBody"] = {"required": not is_optional(given), "content": types.of(given)}
    return operation


def _tag(path: str) -> str:
    parts = [part for part in path.split("/") if part]
    if parts[0] == "heliograph":
        return "heliograph"
    if parts[0] in ("admin", "lookup") and len(parts) > 2:
        return "topics" if parts[2].startswith("{domain") else parts[2].partition("{")[0] or "functions"
    return parts[0]
