"""What is published over HTTP: where each message goes, what of it is stored, what is refused before anything is."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import avro.io
import avro.schema
import pytest
from aiohttp import web

from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import (
    MalformedRequest,
    MetadataUnavailable,
    NotAllowed,
    NotEnoughBookies,
    NotFound,
    RegionPassive,
)
from heliograph.model.topic_names import TopicName
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from region_node.faces.admin.calls.admin_context import OwnedElsewhere
from region_node.faces.admin.calls.call_bodies import decoded
from region_node.faces.admin.topics.rest_producer import MESSAGES_MAX, ProducerMessages, PublishLimits, produce
from region_node.placement.ownership.broker_records import BrokerRecord
from region_node.schemas.schema_checks import AT_ONCE_BYTES
from region_node.subscriptions.sticky_keys import key_hash
from region_node.usage.tenant_usage import Usage
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, settle, with_broker

NAME = TopicName.parse(TOPIC)
ELSEWHERE = BrokerRecord("other")


class Admin:
    """Of a broker over fake storage. `elsewhere`: partitions that another one owns; what it is asked is in `calls`."""

    def __init__(self, broker: Broker, elsewhere: tuple[int, ...] = ()) -> None:
        self.view, self.topics, self.clock, self.usage = broker.view, broker.topics, broker.clock, Usage()
        self.elsewhere = elsewhere
        self.calls: list[tuple[Any, ...]] = []

    def topic(self, request: Any) -> TopicName:
        return NAME

    async def here(self, name: TopicName) -> str:
        if name.partition in self.elsewhere:
            raise OwnedElsewhere(ELSEWHERE)
        return str(name)

    async def call(self, record: BrokerRecord, method: str, path: str, given: dict[str, Any]) -> Any:
        self.calls.append((record, method, path, given))
        results = [{"messageId": f"{path[-1]}:{place}"} for place in range(len(given["messages"]))]
        return {"messagePublishResults": results, "schemaVersion": 0}


class Request(dict[str, Any]):
    def __init__(self, given: Any, partition: str | None = None) -> None:
        super().__init__()
        self.match_info = {} if partition is None else {"partition": partition}
        self.headers: dict[str, str] = {}
        self.given = given

    async def read(self) -> bytes:
        return json.dumps(self.given).encode()


async def post(
    admin: Admin, messages: Any, partition: str | None = None, limits: PublishLimits | None = None, **more: Any
) -> Any:
    request = cast(web.Request, Request({"messages": messages, **more}, partition))
    given = await decoded(request, ProducerMessages)
    return await produce(cast(Any, admin), request, given, limits or PublishLimits())


def texts(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"payload": f"m{number}", **fields} for number in range(count)]


def entries(broker: Broker, topic: str = TOPIC) -> list[tuple[Any, bytes]]:
    """(metadata, payload) of each."""
    found = []
    for _, _, run in broker.ledger(topic).runs:
        for part in run.parts:
            metadata, payload = entry_metadata(part)
            found.append((metadata, bytes(payload)))
    return found


def test_messages_are_stored_in_their_order_under_ids_of_their_places() -> None:
    async def test(broker: Broker) -> None:
        admin = Admin(broker)
        answer = await post(admin, texts(3))
        ids = [row["messageId"] for row in answer["messagePublishResults"]]
        assert ids == ["10:0:-1", "10:1:-1", "10:2:-1"] and answer["schemaVersion"] == 0
        found = entries(broker)
        assert [payload for _, payload in found] == [b"m0", b"m1", b"m2"]
        assert [metadata.sequence_id for metadata, _ in found] == [0, 1, 2]
        assert all(metadata.publish_time == broker.clock.wall_ms() for metadata, _ in found)
        used = admin.usage.of("public")
        assert used.messages_in == 3 and used.bytes_in == sum(run.size_bytes for *_, run in broker.ledger().runs)
        assert broker.topics.loaded[TOPIC].last_publish_ms == broker.clock.wall_ms()

    with_broker(test)


def test_a_topic_that_clients_may_not_make_is_not_made() -> None:
    async def test(broker: Broker) -> None:
        closed = {"autoTopicCreation": {"allowAutoTopicCreation": False}}
        broker.view.set("public/default", NamespacePolicies(regions=("us",), policies=closed))
        with pytest.raises(NotFound):
            await post(Admin(broker), texts(1))
        broker.view.set("public/default", NamespacePolicies(regions=("us",)))
        broker.topics.gates.sent_on = lambda namespace: RegionPassive("in eu")  # type: ignore[method-assign]
        with pytest.raises(RegionPassive):
            await post(Admin(broker), texts(1))
        assert not broker.factory.ledgers

    with_broker(test)


def test_what_is_published_waits_for_the_rates_of_its_topic() -> None:
    async def test(broker: Broker) -> None:
        rate = {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
        broker.view.set("public/default", NamespacePolicies(regions=("us",), policies={"publishRate": rate}))
        admin = Admin(broker)
        await post(admin, texts(30))
        posting = [asyncio.ensure_future(post(admin, texts(30))) for _ in range(2)]
        await settle()
        assert len(entries(broker)) == 30
        for count in (60, 90):
            gate = broker.topics.loaded[TOPIC].publish_gate
            assert gate is not None
            gate.open()
            await settle()
            assert len(entries(broker)) == count, "the next one waits for what this one has used up"
        assert all(one.done() for one in posting)
        answer = await post(admin, texts(2), limits=PublishLimits(rate_wait_s=0))
        assert [row["errorCode"] for row in answer["messagePublishResults"]] == [2, 2]
        assert "publish rate" in answer["messagePublishResults"][0]["errorMsg"] and len(entries(broker)) == 90
        assert admin.usage.of("public").messages_in == 90 and not gate._held

    with_broker(test)


def test_what_has_waited_is_not_published_where_a_producer_has_the_topic_for_itself_meanwhile() -> None:
    async def test(broker: Broker) -> None:
        rate = {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
        broker.view.set("public/default", NamespacePolicies(regions=("us",), policies={"publishRate": rate}))
        admin = Admin(broker)
        await post(admin, texts(30))
        posting = asyncio.ensure_future(post(admin, texts(1)))
        await settle()
        topic = broker.topics.loaded[TOPIC]
        topic.producers._exclusive = cast(Any, object())
        gate = topic.publish_gate
        assert gate is not None
        gate.open()
        (result,) = (await posting)["messagePublishResults"]
        assert "an exclusive producer" in result["errorMsg"] and len(entries(broker)) == 30

    with_broker(test)


@pytest.mark.parametrize(("index", "there"), (("-1", False), ("0", True), ("2", True), ("3", False)))
def test_a_partition_that_is_named_is_one_of_those_that_are_there(index: str, there: bool) -> None:
    async def test(broker: Broker) -> None:
        broker.view.counts[TOPIC] = 3
        if not there:
            with pytest.raises(NotAllowed, match=f"has 3 partition.* there is no partition {index}"):
                await post(Admin(broker), texts(1), index)
            return
        answer = await post(Admin(broker), texts(2), index)
        assert [row["messageId"][-2:] for row in answer["messagePublishResults"]] == [f":{index}"] * 2
        assert [payload for _, payload in entries(broker, f"{TOPIC}-partition-{index}")] == [b"m0", b"m1"]

    with_broker(test)


def test_a_topic_without_partitions_has_none_to_name() -> None:
    async def test(broker: Broker) -> None:
        with pytest.raises(NotAllowed):
            await post(Admin(broker), texts(1), "0")
        with pytest.raises(MalformedRequest):
            await post(Admin(broker), texts(1), "x")

    with_broker(test)


def test_messages_go_to_the_partition_of_their_key_the_others_by_turns_and_results_come_in_order() -> None:
    async def test(broker: Broker) -> None:
        broker.view.counts[TOPIC] = 3
        admin = Admin(broker, elsewhere=(1,))
        messages = [{"payload": str(place), **({"key": "k"} if place % 2 else {})} for place in range(8)]
        answer = await post(admin, messages)
        keyed = key_hash(b"k") % 3
        where = [keyed if place % 2 else place % 3 for place in range(8)]
        for partition in (0, 2):
            wanted = [str(place).encode() for place in range(8) if where[place] == partition]
            assert [payload for _, payload in entries(broker, f"{TOPIC}-partition-{partition}")] == wanted
        ((record, method, path, given),) = admin.calls
        assert (record, method) == (ELSEWHERE, "POST") and path.endswith(
            "/topics/persistent/public/default/t/partitions/1"
        )
        assert [message["payload"] for message in given["messages"]] == [str(p) for p in range(8) if where[p] == 1]
        results = answer["messagePublishResults"]
        assert all(bool("errorCode" in result) == (where[place] != 1) for place, result in enumerate(results))
        firsts = [result["messageId"] for place, result in enumerate(results) if where[place] == 1]
        assert firsts == [f"1:{number}" for number in range(len(firsts))]

    with_broker(test)


@pytest.mark.parametrize("messages", (None, [], {}, "x", ["x"], [{"payload": "a"}, 7]))
def test_what_are_no_messages_is_refused(messages: Any) -> None:
    async def test(broker: Broker) -> None:
        with pytest.raises(MalformedRequest, match=r"^messages"):
            await post(Admin(broker), messages)
        assert TOPIC not in broker.topics.loaded

    with_broker(test)


def test_a_request_has_as_many_messages_as_a_run() -> None:
    async def test(broker: Broker) -> None:
        with pytest.raises(MalformedRequest, match=f"^messages: expected array of length <= {MESSAGES_MAX}"):
            await post(Admin(broker), [{}] * (MESSAGES_MAX + 1))
        assert len((await post(Admin(broker), [{}] * 10))["messagePublishResults"]) == 10

    with_broker(test)


def test_a_message_keeps_what_it_says_of_itself() -> None:
    async def test(broker: Broker) -> None:
        now_ms = broker.clock.wall_ms()
        given = [
            {"payload": "a", "key": "k", "properties": {"x": 1}, "eventTime": 7, "sequenceId": 40},
            {"payload": "b", "deliverAt": now_ms + 5, "sequenceId": 41},
            {"payload": "c", "deliverAfterMs": 60, "disableReplication": True, "replicationClusters": ["eu"]},
            {"replicationClusters": ["eu", "ap"]},
            {"payload": {"x": [1]}},
        ]
        await post(Admin(broker), given, producerName="p")
        a, b, c, empty, structured = entries(broker)
        assert (a[0].partition_key, a[0].event_time, a[0].sequence_id, a[0].producer_name) == ("k", 7, 40, "p")
        assert [(pair.key, pair.value) for pair in a[0].properties] == [("x", "1")]
        assert a[0].deliver_at_time == 0 and b[0].deliver_at_time == now_ms + 5 and c[0].deliver_at_time == now_ms + 60
        assert (list(a[0].replicate_to), list(c[0].replicate_to)) == ([], ["__local__"])
        assert list(empty[0].replicate_to) == ["eu", "ap"] and empty[0].null_value and not a[0].null_value
        assert empty[1] == b"" and json.loads(structured[1]) == {"x": [1]} and a[0].uncompressed_size == 1
        assert [metadata.sequence_id for metadata, _ in (c, empty)] == [2, 3], "its place"

    with_broker(test)


@pytest.mark.parametrize(
    "message",
    (
        {"sequenceId": -1},
        {"sequenceId": 1 << 62},
        {"eventTime": "x"},
        {"deliverAt": 1.5},
        {"properties": ["x"]},
        {"replicationClusters": 5},
    ),
)
def test_what_no_message_can_say_is_refused_and_nothing_is_stored(message: dict[str, Any]) -> None:
    async def test(broker: Broker) -> None:
        with pytest.raises(MalformedRequest):
            await post(Admin(broker), [{"payload": "a"}, message])
        assert not broker.ledger().runs

    with_broker(test)


def test_only_a_producer_with_a_name_of_its_own_is_known_again() -> None:
    async def test(broker: Broker) -> None:
        admin = Admin(broker)
        await post(admin, texts(2))
        await post(admin, texts(2, sequenceId=9), producerName="p")
        runs = [run for *_, run in broker.ledger().runs]
        assert not runs[0].producers and [(name, count, first) for name, count, first, _ in runs[1].producers] == [
            ("p", 2, 9)
        ]
        assert {metadata.producer_name for metadata, _ in entries(broker)} == {"rest", "p"}

    with_broker(test)


def test_what_could_not_be_stored_is_told_of_each_message() -> None:
    async def test(broker: Broker) -> None:
        admin = Admin(broker)
        await post(admin, texts(1))
        broker.ledger().fail_with = NotEnoughBookies("none")
        answer = await post(admin, texts(2))
        assert [(row["errorCode"], row["messageId"]) for row in answer["messagePublishResults"]] == [(2, "")] * 2
        assert "none" in answer["messagePublishResults"][0]["errorMsg"]

    with_broker(test)


VALUES: tuple[tuple[str, Any, bytes | None], ...] = (
    ("STRING", "x", b"x"),
    ("INT8", -1, b"\xff"),
    ("INT8", 128, None),
    ("INT32", "7", b"\0\0\0\x07"),
    ("INT64", 1, b"\0" * 7 + b"\x01"),
    ("INT16", "x", None),
    ("FLOAT", 1, b"\x3f\x80\0\0"),
    ("FLOAT", 1e300, None),
    ("INT8", float("inf"), None),
    ("DOUBLE", 10**400, None),
    ("DOUBLE", "x", None),
    ("BOOLEAN", True, b"\x01"),
    ("BOOLEAN", "False", b"\0"),
    ("BOOLEAN", 1, None),
    ("BYTES", "x", b"x"),
)


@pytest.mark.parametrize(("kind", "value", "wanted"), VALUES)
def test_a_payload_is_written_as_its_schema_says(kind: str, value: Any, wanted: bytes | None) -> None:
    async def test(broker: Broker) -> None:
        admin = Admin(broker)
        admin.topics = SimpleNamespace(  # type: ignore[assignment]
            get_for_client=broker.topics.get_for_client, new_schema=noted
        )
        schema = {"name": "s", "type": kind, "schema": "", "properties": {}}
        for given in (schema, json.dumps(schema)):
            if wanted is None:
                with pytest.raises(MalformedRequest):
                    await post(admin, [{"payload": value}], valueSchema=given)
            else:
                await post(admin, [{"payload": value}], valueSchema=given)
        assert [payload for _, payload in entries(broker)] == ([wanted] * 2 if wanted is not None else [])
        assert bool(kinds) == (kind != "BYTES"), "bytes have no schema"

    kinds: list[Any] = []

    async def noted(name: TopicName, schema: Any) -> int:
        kinds.append(schema.type)
        return 3

    with_broker(test)


HALF = '{"type": "INT8", "name": "\\ud800"}'


@pytest.mark.parametrize("given", ("{", 7, {"name": "s"}, {"type": "INT8", "properties": 7}, HALF))
def test_what_is_no_schema_is_refused(given: Any) -> None:
    async def test(broker: Broker) -> None:
        with pytest.raises(MalformedRequest, match="expected SchemaInfo"):
            await post(Admin(broker), texts(1), valueSchema=given)
        with pytest.raises(NotAllowed, match="not taken over HTTP"):
            await post(Admin(broker), texts(1), valueSchema={"type": "PROTOBUF", "schema": ""})

    with_broker(test)


def test_a_schema_that_would_take_long_to_be_parsed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: Broker) -> None:
        monkeypatch.setattr("avro.schema.parse", lambda *_: pytest.fail("it is parsed"))
        large = json.dumps({"type": "fixed", "name": "F", "size": 1, "doc": "x" * AT_ONCE_BYTES})
        for field in ("keySchema", "valueSchema"):
            with pytest.raises(NotAllowed, match="publish with a client"):
                await post(Admin(broker), texts(1), **{field: {"type": "AVRO", "schema": large}})

    with_broker(test)


def avro_kinds() -> list[Any]:
    return [*({"type": "enum", "name": f"E{n}", "symbols": [f"S{n}"]} for n in range(9)), "int"]


def test_all_partitions_of_a_request_have_one_bound() -> None:
    limits = PublishLimits(request_steps_max=3000)

    async def test(broker: Broker) -> None:
        broker.view.counts[TOPIC] = 4
        schema = {"type": "AVRO", "schema": json.dumps({"type": "array", "items": avro_kinds()})}
        await post(Admin(broker), [{"payload": [1] * 30}] * 4, limits=limits, valueSchema=schema)
        before = sum(len(entries(broker, f"{TOPIC}-partition-{index}")) for index in range(4))
        answer = await post(Admin(broker), [{"payload": [1] * 40}] * 4, limits=limits, valueSchema=schema)
        results = answer["messagePublishResults"]
        published = sum(row["errorCode"] == 0 for row in results)
        assert 0 < published < 4, "what went to one partition is told, though another one takes no more"
        assert sum(len(entries(broker, f"{TOPIC}-partition-{index}")) for index in range(4)) == before + published
        assert all("publish fewer in a request" in row["errorMsg"] for row in results[published:])
        with pytest.raises(NotAllowed, match="publish fewer in a request"):
            await post(Admin(broker), [{"payload": [1] * 400}] * 4, limits=limits, valueSchema=schema)
        assert sum(len(entries(broker, f"{TOPIC}-partition-{index}")) for index in range(4)) == before + published

    with_broker(test)


def test_a_partition_that_is_refused_takes_nothing_from_what_went_to_the_others() -> None:
    async def test(broker: Broker) -> None:
        broker.view.counts[TOPIC] = 3
        admin = Admin(broker, elsewhere=(1,))

        async def away(*_: Any) -> Any:
            raise MetadataUnavailable("broker other does not answer")

        admin.call = away  # type: ignore[method-assign]
        results = (await post(admin, texts(6)))["messagePublishResults"]
        assert [row["errorCode"] for row in results] == [0, 2, 0] * 2
        assert [("does not answer" in row["errorMsg"], row["messageId"]) for row in results[1::3]] == [(True, "")] * 2
        key = next(str(number) for number in range(100) if key_hash(str(number).encode()) % 3 == 1)
        with pytest.raises(MetadataUnavailable, match="does not answer"):
            await post(admin, texts(2, key=key))

    with_broker(test)


FIELDS = [{"name": f"f{n}", "type": ["null", "int"]} for n in range(5)]


@pytest.mark.parametrize(
    ("kinds", "item"), ((avro_kinds(), 1), ([{"type": "record", "name": "R", "fields": FIELDS}], {}))
)
def test_items_times_branches_of_avro_payloads_are_bounded(
    kinds: Any, item: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = PublishLimits(message_steps_max=4000, request_steps_max=20_000)

    async def test(broker: Broker) -> None:
        held = list[int]()
        for one in (avro.schema.EnumSchema, avro.schema.PrimitiveSchema):
            validate = one.validate
            monkeypatch.setattr(one, "validate", lambda *given, v=validate: held.append(1) or v(*given))
        schema = {"type": "AVRO", "schema": json.dumps({"type": "array", "items": kinds})}
        await post(Admin(broker), [{"payload": [item] * 50}] * 5, limits=limits, valueSchema=schema)
        for messages, bound in (([{"payload": [item] * 2000}], 4000), ([{"payload": [item] * 50}] * 50, 20_000)):
            held.clear()
            with pytest.raises(NotAllowed, match="publish fewer in a request, or with a client"):
                await post(Admin(broker), messages, limits=limits, valueSchema=schema)
            assert len(held) <= bound

    with_broker(test)


def test_messages_that_take_many_steps_let_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: Broker) -> None:
        schema = {"type": "AVRO", "schema": json.dumps({"type": "array", "items": avro_kinds()})}
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        going = asyncio.ensure_future(others())
        counted = []
        for size in (0, 0, 500):
            turns = 0
            await post(Admin(broker), [{"payload": [1] * size}] * 5, valueSchema=schema)
            counted.append(turns)
        going.cancel()
        assert counted[2] >= counted[1] + 5, counted

    with_broker(test)
