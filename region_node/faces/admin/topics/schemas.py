"""Schemas: upload, versions, compatibility, deletion.

Is: Pulsar's paths over the registry of the region; any broker answers. Isn't: a rule (`region_node.schemas`).
What differs from Pulsar, on purpose: a definition that makes no sense is always 422 (there, some are 500), and the
answer to "would this be compatible" is 202 with false (there, 500).
Source: Pulsar's SchemasResource; docs/protocols/admin.md, "Schemas".
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from heliograph.model.errors import NotFound
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import pause
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_parameters import TopicOfNamespace
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.schemas.compatibility import IncompatibleSchema
from region_node.schemas.schema_definition import (
    BYTES,
    KEY_VALUE,
    NAMES,
    TYPES,
    InvalidSchema,
    Schema,
    halves,
)
from region_node.schemas.schema_registry import Version


async def latest(admin: Admin, name: TopicOfNamespace) -> Any:
    versions = await admin.topics.schemas.versions(name)
    if not versions:
        raise NotFound("the topic has no schema")
    return _shown(*versions[-1])


async def one(admin: Admin, name: TopicOfNamespace, version: str) -> Any:
    for found, schema in await admin.topics.schemas.versions(name):
        if str(found.number) == version:
            return _shown(found, schema)
    raise NotFound(f"the topic has no schema of version {version}")


async def every(admin: Admin, name: TopicOfNamespace) -> dict[str, Any]:
    rows = []
    for row in await admin.topics.schemas.versions(name):
        rows.append(_shown(*row))
        await pause()  # one of 512 KiB takes its time
    return {"getSchemaResponses": rows}


async def metadata(admin: Admin, name: TopicOfNamespace) -> dict[str, Any]:
    """Where Pulsar names a ledger, there is none: versions lie in the region's metadata."""
    numbers = [version.number for version, _ in await admin.topics.schemas.versions(name)]
    if not numbers:
        raise NotFound("the topic has no schema")
    rows = [{"ledgerId": -1, "entryId": -1, "version": number} for number in numbers]
    return {"info": rows[-1], "index": rows}


class PostSchema(Given):
    """Pulsar's PostSchemaPayload; `schema` is the definition, as a text."""

    type: str
    schema: str = ""
    properties: dict[str, str] | None = None


async def upload(admin: Admin, request: web.Request, name: TopicOfNamespace, given: PostSchema) -> Any:
    schema = _schema(name, given)
    await admin.topics.check_takes_schema(name)
    try:
        number = await admin.topics.schemas.get_or_create(name, schema, admin.topics.schema_strategy(name))
    except (IncompatibleSchema, InvalidSchema) as error:
        return _refused(error)
    admin.changed(request, None, {"version": number, "type": schema.type_name})
    return {"version": {"version": number}}


async def version_of(admin: Admin, name: TopicOfNamespace, given: PostSchema) -> dict[str, int]:
    number = await admin.topics.schemas.find(name, _schema(name, given))
    return {"version": -1 if number is None else number}


async def compatibility(admin: Admin, name: TopicOfNamespace, given: PostSchema) -> Any:
    schema = _schema(name, given)
    strategy = admin.topics.schema_strategy(name)
    existing = [each for _, each in await admin.topics.schemas.versions(name)]
    checks = admin.topics.schemas.checks
    try:
        if not (existing and schema.same(existing[-1])):
            await checks.definition(name.tenant, schema)
            await checks.new(name.tenant, schema, existing, strategy)
        fits = True
    except InvalidSchema as error:
        return _refused(error)
    except IncompatibleSchema:
        fits = False
    return web.json_response({"compatibility": fits, "schemaCompatibilityStrategy": strategy}, status=202)


async def delete(admin: Admin, request: web.Request, name: TopicOfNamespace) -> dict[str, int]:
    """What is there is hidden from clients; the next schema may be any."""
    before = [version.number for version, _ in await admin.topics.schemas.versions(name)]
    number = await admin.topics.schemas.mark_deleted(name)
    admin.changed(request, before, [])
    return {"version": number}


def _schema(name: TopicName, given: PostSchema) -> Schema:
    """Raises Unprocessable for an unknown type and for a KEY_VALUE schema that is none."""
    if given.type not in TYPES and given.type != BYTES:
        raise Unprocessable(f"type is {given.type!r}; there are {', '.join(TYPES)}")
    number = TYPES["NONE" if given.type == BYTES else given.type]
    data = _key_value(given.schema) if number == KEY_VALUE else given.schema.encode()
    return Schema(number, name.local, data, given.properties or {})


def _key_value(text: str) -> bytes:
    """{"key": definition, "value": definition} as the wire has it."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or set(given) - {"key", "value"}:
        raise Unprocessable('the schema of a KEY_VALUE is a JSON object {"key": definition, "value": definition}')
    out = b""
    for half in ("key", "value"):
        value = given.get(half, "")
        data = (value if isinstance(value, str) else json.dumps(value)).encode()
        out += len(data).to_bytes(4, "big") + data
    return out


def _shown(version: Version, schema: Schema) -> dict[str, Any]:
    if schema.type == KEY_VALUE:
        shown = {}
        for half, each in zip(("key", "value"), halves(schema), strict=True):
            try:
                shown[half] = json.loads(each.data) if each.data else ""
            except (ValueError, RecursionError):
                shown[half] = each.data.decode(errors="replace")
        data = json.dumps(shown)
    else:
        data = schema.data.decode(errors="replace")
    kind = NAMES.get(schema.type, str(schema.type))
    return {
        "version": version.number,
        "type": kind,
        "timestamp": version.time_ms,
        "data": data,
        "properties": schema.properties,
    }


class Unprocessable(web.HTTPUnprocessableEntity):
    def __init__(self, reason: str) -> None:
        super().__init__(reason=reason.replace("\n", " ")[:500])


def _refused(error: IncompatibleSchema | InvalidSchema) -> web.Response:
    return web.json_response({"reason": str(error)}, status=409 if isinstance(error, IncompatibleSchema) else 422)


_OF = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
ROUTES: tuple[Route, ...] = (
    Route("GET", f"{_OF}/schema", CallAccess.LOOK_UP, latest),
    Route("GET", f"{_OF}/schema/{{version}}", CallAccess.LOOK_UP, one),
    Route("GET", f"{_OF}/schemas", CallAccess.LOOK_UP, every),
    Route("GET", f"{_OF}/metadata", CallAccess.LOOK_UP, metadata),
    Route("POST", f"{_OF}/schema", CallAccess.PRODUCE, upload),
    Route("POST", f"{_OF}/version", CallAccess.PRODUCE, version_of),
    Route("POST", f"{_OF}/compatibility", CallAccess.PRODUCE, compatibility),
    Route("DELETE", f"{_OF}/schema", CallAccess.TENANT, delete),
)
