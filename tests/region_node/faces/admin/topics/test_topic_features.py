"""What a topic can do beside messages, over HTTP and with the official client: entry filters, publishing by HTTP,
grants that end with a topic.

What a real Pulsar can pass is marked `either`. Its entry filters are Java, in an archive of its own: ours, a Python
class, is nothing that it could load.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from tests.region_node.either import ORACLE, Either, either
from tests.region_node.faces.admin.topics.official_names import EARLIEST, KEYED, SHARED
from tests.region_node.live import NAMESPACE, TOPICS, until
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.wan, pytest.mark.slow]

FILTERS = {
    "mine": "tests.region_node.subscriptions.example_filters:ByProperty",
    "broken": "tests.region_node.subscriptions.example_filters:Broken",
}


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory, pulsar_server: Either | None) -> Iterator[Either]:
    with either(tmp_path_factory.mktemp("features"), pulsar_server, brokers=2, entry_filters=FILTERS) as region:
        yield region


# -- entry filters


def test_a_filter_holds_at_once_and_ends_at_once(client: pulsar.Client, rest: Rest) -> None:
    consumer = client.subscribe("filtered", "s", SHARED)
    producer = client.create_producer("filtered")
    assert rest("POST", f"{TOPICS}/filtered/entryFilters", {"entryFilterNames": "nobody"})[0] == 400
    assert rest("POST", f"{TOPICS}/filtered/entryFilters", {"entryFilterNames": "mine"})[0] == 204
    assert rest("GET", f"{TOPICS}/filtered/entryFilters")[1] == {"entryFilterNames": "mine"}
    for index, says in enumerate(["yes", "no", "later", "yes"]):
        producer.send(str(index).encode(), properties={"filter": says})
    got = []
    for _ in range(3):
        message = consumer.receive(60_000)
        consumer.acknowledge(message)
        got.append(message.data())
    assert sorted(got) == [b"0", b"2", b"3"]
    stats = until(
        lambda: (s := rest("GET", f"{TOPICS}/filtered/stats")[1]["subscriptions"]["s"])["msgBacklog"] == 0 and s
    )
    assert (stats["filterAcceptedMsgCount"], stats["filterRejectedMsgCount"], stats["filterRescheduledMsgCount"]) == (
        3,
        1,
        1,
    )
    assert rest("DELETE", f"{TOPICS}/filtered/entryFilters")[0] == 204
    producer.send(b"4", properties={"filter": "no"})
    assert consumer.receive(60_000).data() == b"4"
    assert rest("PUT", f"{TOPICS}/filtered/subscription/nobody", {"ledgerId": -1, "entryId": -1})[0] == 204
    assert rest("POST", f"{TOPICS}/filtered/entryFilters", {"entryFilterNames": "mine"})[0] == 204
    found = rest("POST", f"{TOPICS}/filtered/subscription/nobody/analyzeBacklog", {})[1]
    assert (
        found["entries"],
        found["filterAcceptedEntries"],
        found["filterRejectedEntries"],
        found["filterRescheduledEntries"],
    ) == (5, 2, 2, 1)
    assert (found["filterAcceptedMessages"], found["filterRejectedMessages"], found["filterRescheduledMessages"]) == (
        2,
        2,
        1,
    )
    stats = rest("GET", f"{TOPICS}/filtered/stats")[1]["subscriptions"]["nobody"]
    assert stats["filterProcessedMsgCount"] == 0, "a look gives nothing to anybody"
    assert rest("DELETE", f"{TOPICS}/filtered/entryFilters")[0] == 204
    for one in (consumer, producer):
        one.close()


def test_a_faulty_filter_of_the_namespace_holds_everything_back(client: pulsar.Client, rest: Rest) -> None:
    assert rest("POST", f"{NAMESPACE}/entryFilters", {"entryFilterNames": "broken"})[0] == 204
    try:
        consumer = client.subscribe("held", "s", initial_position=EARLIEST)
        client.create_producer("held").send(b"x")
        until(lambda: rest("GET", f"{TOPICS}/held/stats")[1]["subscriptions"]["s"]["filterRescheduledMsgCount"] > 0)
    finally:
        assert rest("DELETE", f"{NAMESPACE}/entryFilters")[0] == 204
    assert consumer.receive(60_000).data() == b"x"
    consumer.close()


# -- publishing over HTTP


def receive_all(client: pulsar.Client, topic: str, count: int, **options: Any) -> list[Any]:
    consumer = client.subscribe(topic, "all", initial_position=EARLIEST, **options)
    out = [consumer.receive(60_000) for _ in range(count)]
    consumer.close()
    return out


@pytest.mark.either
def test_messages_over_http(client: pulsar.Client, rest: Rest) -> None:
    body = {
        "producerName": "me",
        "messages": [{"key": "k", "payload": "one", "properties": {"a": "b"}, "eventTime": 77}, {"payload": "two"}],
    }
    assert rest("PUT", f"{TOPICS}/posted")[0] == 204
    status, answer = rest("POST", "/topics/persistent/public/default/posted", body)
    assert status == 200 and [row["errorCode"] for row in answer["messagePublishResults"]] == [0, 0]
    first, second = receive_all(client, "posted", 2)
    assert (
        first.data(),
        first.partition_key(),
        first.properties(),
        first.event_timestamp(),
        first.producer_name(),
    ) == (b"one", "k", {"a": "b"}, 77, "me")
    ids = [f"{m.message_id().ledger_id()}:{m.message_id().entry_id()}:-1" for m in (first, second)]
    assert [row["messageId"] for row in answer["messagePublishResults"]] == ids
    wrongs: list[Any] = [{}, {"messages": []}, {"messages": "x"}, {"messages": [{"payload": "a", "sequenceId": "x"}]}]
    wrongs.append({"messages": [{"payload": "a"}] * 600})
    if ORACLE:  # it makes no topics by that, and of what is wrong it says 500, or takes it
        return
    for wrong in wrongs:
        assert rest("POST", "/topics/persistent/public/default/posted", wrong)[0] == 400, wrong
    assert rest("POST", "/topics/persistent/public/nowhere/posted", body)[0] == 404
    assert rest("POST", "/topics/persistent/public/default/posted-first", {"messages": body["messages"]})[0] == 200
    alone = client.create_producer("posted", access_mode=pulsar.ProducerAccessMode.Exclusive)
    assert rest("POST", "/topics/persistent/public/default/posted", body)[0] == 412
    alone.close()


def test_messages_over_http_go_to_the_partitions_of_their_keys(client: pulsar.Client, rest: Rest) -> None:
    assert rest("PUT", f"{TOPICS}/spread/partitions", 6)[0] == 204
    messages = [{"key": f"k{i % 5}", "payload": str(i)} for i in range(20)]
    status, answer = rest("POST", "/topics/persistent/public/default/spread", {"messages": messages})
    assert status == 200 and all(row["messageId"] for row in answer["messagePublishResults"])
    where = [row["messageId"].split(":")[2] for row in answer["messagePublishResults"]]
    assert all(where[i] == where[i % 5] for i in range(20)) and len(set(where)) > 1
    found = receive_all(client, "spread", 20)
    for key in range(5):
        assert [int(m.data()) for m in found if m.partition_key() == f"k{key}"] == list(range(key, 20, 5))
    assert rest("POST", "/topics/persistent/public/default/spread/partitions/6", {"messages": messages})[0] == 412
    answer = rest("POST", "/topics/persistent/public/default/spread/partitions/3", {"messages": messages[:1]})[1]
    assert answer["messagePublishResults"][0]["messageId"].endswith(":3")


class Person(pulsar.schema.Record):  # type: ignore[misc]
    name = pulsar.schema.String(required=True)
    age = pulsar.schema.Integer(required=True)


@pytest.mark.either
def test_messages_over_http_with_a_schema(client: pulsar.Client, rest: Rest) -> None:
    assert rest("PUT", f"{TOPICS}/typed")[0] == 204
    definition = json.dumps(
        {
            "type": "record",
            "name": "Person",
            "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "int"}],
        }
    )
    schema = {
        "name": "Person",
        "type": "AVRO",
        "schema": base64.b64encode(definition.encode()).decode(),
        "properties": {},
    }
    body = {"valueSchema": json.dumps(schema), "messages": [{"payload": '{"name": "a", "age": 7}'}]}
    status, answer = rest("POST", "/topics/persistent/public/default/typed", body)
    assert status == 200 and [(row["errorCode"], row["schemaVersion"]) for row in answer["messagePublishResults"]] == [
        (0, 0)
    ]
    found = receive_all(client, "typed", 1, schema=pulsar.schema.AvroSchema(Person))[0].value()
    assert (found.name, found.age) == ("a", 7)
    if ORACLE:  # it takes what does not fit the schema, and answers another schema with 500
        return
    plain = {**schema, "schema": definition}
    status, answer = rest("POST", "/topics/persistent/public/default/typed", {**body, "valueSchema": plain})
    assert status == 200 and answer["schemaVersion"] == 0, "the definition as it is: the same schema"
    body["messages"] = [{"payload": '{"name": "a"}'}]
    assert rest("POST", "/topics/persistent/public/default/typed", body)[0] == 400
    other = {"valueSchema": json.dumps({"type": "INT32", "schema": ""}), "messages": [{"payload": "7"}]}
    assert rest("POST", "/topics/persistent/public/default/typed", other)[0] == 409


# -- grants


def test_grants_end_with_their_topic(rest: Rest) -> None:
    for name, make, remove in (
        ("granted", f"{TOPICS}/granted", f"{TOPICS}/granted"),
        ("parts", f"{TOPICS}/parts/partitions", f"{TOPICS}/parts/partitions"),
    ):
        assert rest("PUT", make, 2 if "parts" in make else None)[0] == 204
        assert rest("POST", f"{TOPICS}/{name}/permissions/reader", ["consume"])[0] == 204
        assert "reader" in rest("GET", f"{TOPICS}/{name}/permissions")[1]
        assert rest("DELETE", remove)[0] == 204
        assert rest("PUT", make, 2 if "parts" in make else None)[0] == 204
        assert "reader" not in rest("GET", f"{TOPICS}/{name}/permissions")[1]


def test_grants_end_with_a_topic_that_nobody_used(rest: Rest) -> None:
    assert rest("PUT", f"{TOPICS}/unused")[0] == 204
    assert rest("POST", f"{TOPICS}/unused/permissions/reader", ["consume"])[0] == 204
    assert rest("POST", f"{TOPICS}/no%0Atopic/permissions/reader", ["consume"])[0] == 412
    inactive = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 1,
        "deleteWhileInactive": True,
    }
    assert rest("POST", f"{TOPICS}/unused/inactiveTopicPolicies", inactive)[0] == 204
    until(lambda: not any("/unused" in name for name in rest("GET", TOPICS)[1]))
    assert rest("PUT", f"{TOPICS}/unused")[0] == 204
    until(lambda: "reader" not in rest("GET", f"{TOPICS}/unused/permissions")[1])


# -- Key_Shared


def test_the_division_of_keys_changes_while_the_broker_runs(client: pulsar.Client, rest: Rest) -> None:
    consumers = [client.subscribe("keyed", "s", KEYED, consumer_name=f"c{i}") for i in range(2)]

    def ranges() -> list[int]:
        return [
            len(c["keyHashRanges"]) for c in rest("GET", f"{TOPICS}/keyed/stats")[1]["subscriptions"]["s"]["consumers"]
        ]

    assert ranges() == [1, 1]
    assert rest("POST", "/admin/v2/brokers/configuration/subscriptionKeySharedUseConsistentHashing/true")[0] == 204
    until(lambda: all(count > 10 for count in ranges()))
    assert rest("DELETE", "/admin/v2/brokers/configuration/subscriptionKeySharedUseConsistentHashing")[0] == 204
    until(lambda: ranges() == [1, 1])
    for one in consumers:
        one.close()
