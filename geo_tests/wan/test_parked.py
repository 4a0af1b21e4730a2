"""A schema that conflicts in the target parks that topic's link alone; an operator sees what is here and there,
decides, and nothing is lost.
"""

from __future__ import annotations

import json
import urllib.error
from typing import Any

import pulsar
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String

from geo_tests.wan.instance import Instance, eventually, heliograph, rest

NAME = "parked"
TOPIC, OTHER = f"persistent://public/geo/{NAME}", "persistent://public/geo/not-parked"


class Order(Record):
    amount = Integer()


class Visit(Record):
    page = String()


def names(instance: Instance, region: str) -> dict[int, str]:
    """Number -> the record's name."""
    try:
        found = rest("GET", f"{instance.admin(region)}/admin/v2/schemas/public/geo/{NAME}/schemas")[
            "getSchemaResponses"
        ]
    except urllib.error.HTTPError:
        return {}
    return {row["version"]: json.loads(row["data"])["name"] for row in found}


def publish(instance: Instance, record: type[Record], message: Record) -> None:
    client = instance.client("us")
    producer = client.create_producer(TOPIC, schema=JsonSchema(record))
    producer.send(message)
    producer.close()


def link(instance: Instance) -> dict[str, Any]:
    return instance.links(TOPIC).get(("us", "eu"), {"state": "none"})


@pytest.mark.parametrize("take", ["theirs", "ours"])
def test_a_conflict_waits_for_a_decision(pair: Instance, take: str) -> None:
    us = pair.admin("us")
    for region in ("us", "eu"):
        if names(pair, region):
            rest("DELETE", f"{pair.admin(region)}/admin/v2/persistent/public/geo/{NAME}?force=true&onlyHere=true")
    proxies = pair.proxies("link", "us", "eu") + pair.proxies("link", "eu", "us")
    publish(pair, Order, Order(amount=1))
    eventually(lambda: names(pair, "eu") == {0: "Order"}, "the first schema is in both")
    for proxy in proxies:
        pair.toxiproxy.cut(proxy.name)
    try:
        rest("DELETE", f"{us}/admin/v2/persistent/public/geo/{NAME}?force=true&onlyHere=true")
        publish(pair, Visit, Visit(page="a"))
        assert names(pair, "us") == {0: "Visit"}, "made anew, the topic counts from the beginning"
    finally:
        for proxy in proxies:
            pair.toxiproxy.heal(proxy.name)
    eventually(lambda: link(pair)["state"] == "parked", "the link is parked")
    row = link(pair)
    assert row["cause"] == "schema-conflict" and "unpark" in row["remedy"] and row["backlog_messages"] == 1
    consumer = pair.client("eu").subscribe(OTHER, f"s-{take}", initial_position=pulsar.InitialPosition.Earliest)
    pair.client("us").create_producer(OTHER).send(take.encode())
    while consumer.receive(timeout_millis=60_000).data() != take.encode():
        pass
    assert link(pair)["state"] == "parked" and names(pair, "eu") == {0: "Order"}, (
        "other topics go on, and nobody has decided"
    )
    shown = json.loads(heliograph("topics", "links", TOPIC, "--admin", us, "--json").stdout)
    (found,) = [one for one in shown[0]["links"] if one["target"] == "eu"]
    (conflict,) = found["parked"]["schemas"]
    assert (
        conflict["number"] == 0
        and '+  "data"' not in conflict["diff"]
        and "-    " in conflict["diff"]
        and "--- eu/0" in conflict["diff"]
    )
    told = heliograph("topics", "unpark", TOPIC, "--region", "eu", "--take", take, "--dry-run", "--admin", us).stdout
    assert "would change" in told and names(pair, "us") == {0: "Visit"} and names(pair, "eu") == {0: "Order"}
    heliograph("topics", "unpark", TOPIC, "--region", "eu", "--take", take, "--admin", us)
    eventually(lambda: link(pair)["state"] == "open" and not link(pair)["backlog_messages"], "the backlog is there")
    eventually(
        lambda: names(pair, "us") == names(pair, "eu") and len(names(pair, "us")) == 2,
        "the same in both, and neither schema is lost",
    )
    assert names(pair, "us")[0] == ("Order" if take == "theirs" else "Visit")
    assert any(
        "resolve" in json.dumps(change) for change in rest("GET", f"{us}/heliograph/v1/audit?all=true")["changes"]
    )
    assert (
        heliograph(
            "topics", "unpark", TOPIC, "--region", "eu", "--take", "retry", "--admin", us, check=False
        ).returncode
        != 0
    )
    eventually(lambda: pair.links(TOPIC).get(("eu", "us"), {}).get("state") != "parked", "the way back")


def test_a_plain_topic_and_a_partitioned_one_of_one_name_never_mix(pair: Instance) -> None:
    us, eu, topic = pair.admin("us"), pair.admin("eu"), "persistent://public/geo/two-kinds"
    proxies = pair.proxies("link", "us", "eu") + pair.proxies("link", "eu", "us")
    for proxy in proxies:
        pair.toxiproxy.cut(proxy.name)
    try:
        pair.client("us").create_producer(topic).send(b"plain")
        rest("PUT", f"{eu}/admin/v2/persistent/public/geo/two-kinds/partitions", 2)
    finally:
        for proxy in proxies:
            pair.toxiproxy.heal(proxy.name)
    row = eventually(
        lambda: (row := pair.links(topic).get(("us", "eu"), {})).get("state") == "parked" and row, "the link is parked"
    )
    assert (
        row["cause"] == "partitions-conflict" and "2 partitions" in row["cause_text"] and row["backlog_messages"] == 1
    )
    assert topic not in rest("GET", f"{eu}/admin/v2/persistent/public/geo"), "no look-alike is made"
    rest("DELETE", f"{us}/admin/v2/persistent/public/geo/two-kinds/partitions?onlyDeclaration=true")
    eventually(lambda: pair.links(topic)[("us", "eu")]["state"] == "open", "the configuration has changed: at once")
    eventually(lambda: pair.read_all("eu", topic) == ["plain"], "nothing is lost")
