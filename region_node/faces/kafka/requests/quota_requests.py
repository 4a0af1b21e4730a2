"""Client quotas by Kafka's tools: DescribeClientQuotas and AlterClientQuotas.

Is: from fields to entities and back, and filters. Isn't: what a quota does (`client_quotas`).
Invariants: each entry is changed whole or not at all; what has no meaning here is refused with the reason.
Source: Kafka KIP-546; docs/protocols/kafka.md, "Quotas".
"""

from __future__ import annotations

from heliograph.model.errors import HeliographError
from heliograph.runtime.throttle import RowPace
from heliograph.wire.kafka.message_codec import Fields, Request
from region_node.faces.kafka.error_codes import Code, Refused, code_of
from region_node.faces.kafka.quotas.client_quotas import canonical
from region_node.faces.kafka.quotas.quota_table import ADDRESS, DEFAULT, NONE, Entity, check, name_of, named
from region_node.faces.kafka.session.kafka_session import KafkaSession

USER, CLIENT, IP = "user", "client-id", "ip"
EXACT, DEFAULT_ONLY, ANY = 0, 1, 2


def _entity(rows: list[Fields]) -> Entity:
    parts = {USER: NONE, CLIENT: NONE, IP: NONE}
    for row in rows:
        kind, name = row["entity_type"], row["entity_name"]
        if kind not in parts or parts[kind] != NONE:
            raise Refused(
                Code.INVALID_REQUEST, f"Unhandled client quota entity type: {kind}, or one that is named twice"
            )
        if kind == IP and name is not None:
            try:
                name = canonical(name)
            except ValueError as error:
                raise Refused(
                    Code.INVALID_REQUEST, f"{name} is not a valid IP address; names of hosts are not looked up here"
                ) from error
        parts[kind] = named(name)
    if not rows:
        raise Refused(Code.INVALID_REQUEST, "Invalid empty client quota entity")
    if parts[IP] != NONE:
        if len(rows) > 1:
            raise Refused(Code.INVALID_REQUEST, "Invalid quota entity combination: an address goes with nothing else")
        return ADDRESS, parts[IP]
    return parts[USER], parts[CLIENT]


def _rows(entity: Entity) -> list[Fields]:
    if entity[0] == ADDRESS:
        return [{"entity_type": IP, "entity_name": name_of(entity[1])}]
    return [
        {"entity_type": kind, "entity_name": name_of(part)}
        for kind, part in zip((USER, CLIENT), entity, strict=True)
        if part != NONE
    ]


async def alter_client_quotas(session: KafkaSession, request: Request) -> Fields:
    rows: list[Fields] = []
    pace = RowPace()
    for entry in request.fields["entries"]:
        await pace.row()
        row: Fields = {"error_code": 0, "error_message": None, "entity": entry["entity"]}
        rows.append(row)
        try:
            session.gate.of_all(request)
            entity, changes = _entity(entry["entity"]), dict[str, float | None]()
            for op in entry["ops"]:
                if op["key"] in changes:
                    raise Refused(Code.INVALID_REQUEST, f"{op['key']} is named twice")
                check(entity, op["key"], None if op["remove"] else op["value"])
                changes[op["key"]] = None if op["remove"] else op["value"]
            if not request.fields["validate_only"]:
                await session.broker.quotas.table.change(entity, changes)
        except HeliographError as error:
            row["error_code"], row["error_message"] = code_of(error), str(error)
    return {"entries": rows}


async def describe_client_quotas(session: KafkaSession, request: Request) -> Fields:
    try:
        session.gate.of_all(request)
        wanted = _filters(request.fields["components"])
    except HeliographError as error:
        return {"error_code": code_of(error), "error_message": str(error), "entries": None}
    strict, rows = request.fields["strict"], list[Fields]()
    for entity, rates in sorted(session.broker.quotas.table.rows.items()):
        of_address = entity[0] == ADDRESS
        parts = (
            {USER: NONE, CLIENT: NONE, IP: entity[1]} if of_address else {USER: entity[0], CLIENT: entity[1], IP: NONE}
        )
        if all(_fits(parts[kind], match) for kind, match in wanted.items()) and not (
            strict and any(part != NONE for kind, part in parts.items() if kind not in wanted)
        ):
            rows.append(
                {
                    "entity": _rows(entity),
                    "values": [{"key": name, "value": rate} for name, rate in sorted(rates.items())],
                }
            )
    return {"error_code": 0, "error_message": None, "entries": rows}


def _filters(components: list[Fields]) -> dict[str, str | None]:
    """Kind of entity -> the part that it must have; None: any. Raises Refused."""
    out: dict[str, str | None] = {}
    for component in components:
        kind, how = component["entity_type"], component["match_type"]
        if kind not in (USER, CLIENT, IP) or kind in out:
            raise Refused(Code.INVALID_REQUEST, f"{kind!r} is no kind of entity, or is named twice")
        if how not in (EXACT, DEFAULT_ONLY, ANY) or (component["match"] is None) != (how != EXACT):
            raise Refused(Code.INVALID_REQUEST, f"{how} is no way to match, or goes without a name or with one")
        out[kind] = None if how == ANY else DEFAULT if how == DEFAULT_ONLY else named(component["match"])
    if IP in out and len(out) > 1:
        raise Refused(
            Code.INVALID_REQUEST, "Invalid entity filter component combination: an address goes with nothing else"
        )
    return out


def _fits(part: str, wanted: str | None) -> bool:
    return part != NONE if wanted is None else part == wanted
