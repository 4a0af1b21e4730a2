"""A topic's schema, brought by a client in one region, is known in the other one under the same numbers, before any
message that names it.
"""

from __future__ import annotations

from typing import Any

import pulsar
from pulsar.schema import Integer, JsonSchema, Record, String

from geo_tests.wan.instance import Instance, eventually, rest

TOPIC = "persistent://public/geo/with-schema"


class Order(Record):
    customer = String()
    amount = Integer()


class OrderWithNote(Record):
    customer = String()
    amount = Integer()
    note = String()


def versions(instance: Instance, region: str) -> list[Any]:
    found: list[Any] = rest("GET", f"{instance.admin(region)}/admin/v2/schemas/public/geo/with-schema/schemas")[
        "getSchemaResponses"
    ]
    return [(row["version"], row["type"], row["data"]) for row in found]


def test_schemas_travel_before_the_messages(pair: Instance) -> None:
    consumer = pair.client("eu").subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = pair.client("us").create_producer(TOPIC, schema=JsonSchema(Order))
    producer.send(Order(customer="a", amount=1))
    assert b'"a"' in consumer.receive(timeout_millis=60_000).data()
    assert versions(pair, "eu") == versions(pair, "us") and len(versions(pair, "eu")) == 1, (
        "what came with the message is here when the message is"
    )
    for region in ("us", "eu"):
        path = f"{pair.admin(region)}/admin/v2/persistent/public/geo/with-schema/schemaCompatibilityStrategy"
        rest("PUT", path, "ALWAYS_COMPATIBLE")
        eventually(lambda path=path: rest("GET", path) == "ALWAYS_COMPATIBLE", "the strategy holds")
    later = pair.client("us").create_producer(TOPIC, schema=JsonSchema(OrderWithNote))
    later.send(OrderWithNote(customer="b", amount=2, note="n"))
    assert b'"b"' in consumer.receive(timeout_millis=60_000).data()
    assert versions(pair, "eu") == versions(pair, "us") and len(versions(pair, "eu")) == 2
    back = pair.client("eu").create_producer(TOPIC, schema=JsonSchema(OrderWithNote))
    back.send(OrderWithNote(customer="c", amount=3, note="n"))
    eventually(lambda: len(pair.read_all("us", TOPIC)) == 3, "the other way")
    assert len(versions(pair, "us")) == 2, "the same schema is no new version"
