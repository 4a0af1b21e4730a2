"""Schemas as the official client and the admin interface see them, here and with a real Pulsar."""

from __future__ import annotations

import json
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, BytesSchema, Integer, JsonSchema, Record, String, StringSchema

from tests.region_node.either import ORACLE, WITHIN_S, Either
from tests.region_node.live import NAMESPACE, until
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.either, pytest.mark.wan, pytest.mark.slow]

SCHEMAS = "/admin/v2/schemas/public/default"


class Ticket(Record):  # type: ignore[misc]
    number = Integer()


class TicketWithName(Record):  # type: ignore[misc]
    _avro_namespace = None
    number = Integer()
    name = String(default="nobody")


class TicketOfText(Record):  # type: ignore[misc]
    number = String()


def avro(*fields: dict[str, Any]) -> dict[str, Any]:
    record = {"type": "record", "name": "R", "fields": list(fields)}
    return {"type": "AVRO", "schema": json.dumps(record), "properties": {}}


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": ["null", "string"], "default": None}
C = {"name": "c", "type": "long"}


def versions(rest: Rest, topic: str) -> list[int]:
    return [row["version"] for row in rest("GET", f"{SCHEMAS}/{topic}/schemas")[1]["getSchemaResponses"]]


def test_versions_are_given_in_order_and_found_again(rest: Rest) -> None:
    assert rest("GET", f"{SCHEMAS}/orders/schema")[0] == 404
    assert rest("POST", f"{SCHEMAS}/orders/schema", avro(A)) == (200, {"version": {"version": 0}})
    assert rest("POST", f"{SCHEMAS}/orders/schema", avro(A)) == (200, {"version": {"version": 0}})
    assert rest("POST", f"{SCHEMAS}/orders/schema", avro(A, B)) == (200, {"version": {"version": 1}})
    newest = rest("GET", f"{SCHEMAS}/orders/schema")[1]
    assert (
        (newest["version"], newest["type"]) == (1, "AVRO")
        and newest["timestamp"] > 0
        and json.loads(newest["data"])["name"] == "R"
    )
    assert json.loads(rest("GET", f"{SCHEMAS}/orders/schema/0")[1]["data"])["fields"] == [A]
    assert rest("GET", f"{SCHEMAS}/orders/schema/5")[0] == 404
    assert versions(rest, "orders") == [0, 1]
    assert rest("POST", f"{SCHEMAS}/orders/version", avro(A, B)) == (200, {"version": 1})


def test_what_is_incompatible_is_refused_and_said_beforehand(rest: Rest) -> None:
    assert rest("POST", f"{SCHEMAS}/checked/schema", avro(A))[0] == 200
    assert rest("POST", f"{SCHEMAS}/checked/compatibility", avro(A, B))[1]["compatibility"] is True
    if not ORACLE:  # Pulsar answers with an error
        found = rest("POST", f"{SCHEMAS}/checked/compatibility", avro(A, C))[1]
        assert (found["compatibility"], found["schemaCompatibilityStrategy"]) == (False, "FULL")
    assert rest("POST", f"{SCHEMAS}/checked/schema", avro(A, C))[0] == 409
    assert rest("POST", f"{SCHEMAS}/checked/schema", {"type": "AVRO", "schema": "?", "properties": {}})[0] == 422
    assert versions(rest, "checked") == [0]


@pytest.mark.parametrize(
    ("strategy", "grows", "shrinks"),
    [
        ("BACKWARD", False, True),
        ("FORWARD", True, False),
        ("FULL", False, False),
        ("ALWAYS_COMPATIBLE", True, True),
        ("ALWAYS_INCOMPATIBLE", False, False),
    ],
)
def test_strategies_of_a_namespace(strategy: str, grows: bool, shrinks: bool, rest: Rest) -> None:
    """grows: a field without a default comes; shrinks: one goes."""
    assert rest("PUT", f"{NAMESPACE}/schemaCompatibilityStrategy", strategy)[0] == 204
    until(lambda: rest("GET", f"{NAMESPACE}/schemaCompatibilityStrategy")[1] == strategy, WITHIN_S)
    for name, first, then, wanted in (("grows", (A,), (A, C), grows), ("shrinks", (A, C), (A,), shrinks)):
        topic = f"{name}-{strategy.lower()}"
        assert rest("POST", f"{SCHEMAS}/{topic}/schema", avro(*first))[0] == 200
        assert rest("POST", f"{SCHEMAS}/{topic}/schema", avro(*then))[0] == (200 if wanted else 409)
        assert versions(rest, topic) == ([0, 1] if wanted else [0])
    assert rest("PUT", f"{NAMESPACE}/schemaCompatibilityStrategy", "UNDEFINED")[0] == 204


def test_clients_of_one_topic(client: pulsar.Client, rest: Rest) -> None:
    producer = client.create_producer("tickets", schema=AvroSchema(Ticket))
    consumer = client.subscribe("tickets", "s", schema=AvroSchema(Ticket))
    producer.send(Ticket(number=7))
    assert consumer.receive(60_000).value().number == 7
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("tickets", schema=AvroSchema(TicketOfText))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("tickets", schema=StringSchema())
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe("tickets", "other", schema=JsonSchema(TicketOfText))
    raw = client.subscribe("tickets", "raw", schema=BytesSchema(), initial_position=pulsar.InitialPosition.Earliest)
    assert raw.receive(60_000).data()  # without a schema of its own it reads what there is
    assert versions(rest, "tickets") == [0]
    for one in (producer, consumer, raw):
        one.close()


def test_a_topic_takes_no_new_schema_where_the_policy_says_so(client: pulsar.Client, rest: Rest) -> None:
    assert rest("POST", f"{SCHEMAS}/fixed/schema", avro(A))[0] == 200
    assert rest("POST", f"{NAMESPACE}/isAllowAutoUpdateSchema", False)[0] == 204
    until(lambda: rest("GET", f"{NAMESPACE}/isAllowAutoUpdateSchema")[1] is False, WITHIN_S)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("fixed", schema=AvroSchema(TicketWithName))
    assert rest("POST", f"{SCHEMAS}/fixed/schema", avro(A, B))[0] == 200, "an administrator may"
    assert rest("POST", f"{NAMESPACE}/isAllowAutoUpdateSchema", True)[0] == 204
    assert versions(rest, "fixed") == [0, 1]


def test_where_validation_is_enforced_nobody_produces_without_a_schema(
    region: Either, client: pulsar.Client, rest: Rest
) -> None:
    producer = client.create_producer("enforced", schema=AvroSchema(Ticket))
    assert rest("POST", f"{NAMESPACE}/schemaValidationEnforced", True)[0] == 204
    until(lambda: rest("GET", f"{NAMESPACE}/schemaValidationEnforced")[1] is True, WITHIN_S)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("enforced")
    producer.send(Ticket(number=1))
    assert rest("POST", f"{NAMESPACE}/schemaValidationEnforced", False)[0] == 204
    producer.close()


def test_deleted_schemas(rest: Rest) -> None:
    assert rest("POST", f"{SCHEMAS}/gone/schema", avro(A))[0] == 200
    assert rest("DELETE", f"{SCHEMAS}/gone/schema")[0] == 200
    assert rest("GET", f"{SCHEMAS}/gone/schema")[0] == 404
    assert rest("POST", f"{SCHEMAS}/gone/schema", {"type": "STRING", "schema": "", "properties": {}})[0] == 200, (
        "what there was counts no more"
    )
    assert rest("GET", f"{SCHEMAS}/gone/schema")[1]["type"] == "STRING"
