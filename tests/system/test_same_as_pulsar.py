"""The same script, by the same official client, against a real Apache Pulsar and against a standalone: the answers are
the same.

Each scenario returns plain values; what differs by nature (ledger ids, times) is left out of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pulsar
import pytest

from tests.system.side_by_side import PATIENCE_MS, Side, sides

__all__ = ["sides"]

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "none"


def drain(consumer: Any, count: int) -> list[bytes]:
    out = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=PATIENCE_MS)
        out.append(message.data())
        consumer.acknowledge(message)
    return out


def publish_and_read(side: Side) -> Any:
    topic = "same-basic"
    producer = side.client.create_producer(topic, "named", batching_enabled=False)
    for n in range(5):
        producer.send(str(n).encode(), properties={"n": str(n)}, partition_key="k" if n % 2 else "", sequence_id=n + 10)
    batched = side.client.create_producer(topic, "batched", batching_enabled=True, batching_max_publish_delay_ms=50)
    for n in range(5, 9):
        batched.send_async(str(n).encode(), None)
    batched.flush()
    reader = side.client.create_reader(topic, pulsar.MessageId.earliest)
    rows = []
    while reader.has_message_available():
        m = reader.read_next(timeout_millis=PATIENCE_MS)
        rows.append(
            (
                m.data(),
                m.properties(),
                m.partition_key(),
                m.producer_name(),
                m.redelivery_count(),
                m.message_id().batch_index(),
            )
        )
    return rows, producer.last_sequence_id()


def exclusive_is_busy(side: Side) -> Any:
    topic = "same-busy"
    side.client.create_producer(topic).send(b"x")
    first = side.client.subscribe(topic, "s")
    second = error_of(lambda: side.client.subscribe(topic, "s"))
    shared = error_of(lambda: side.client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared))
    first.close()
    again = side.client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    other = side.client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    busy = error_of(lambda: again.unsubscribe())
    other.close()
    return second, shared, busy, error_of(lambda: again.unsubscribe())


def producer_of_the_same_name(side: Side) -> Any:
    topic = "same-producer"
    first = side.client.create_producer(topic, "p")
    second = error_of(lambda: side.client.create_producer(topic, "p"))
    first.close()
    return second, error_of(lambda: side.client.create_producer(topic, "p"))


def redelivery(side: Side) -> Any:
    topic = "same-redelivery"
    consumer = side.client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    producer = side.client.create_producer(topic, batching_enabled=False)
    for n in range(3):
        producer.send(str(n).encode())
    first = [consumer.receive(timeout_millis=PATIENCE_MS) for _ in range(3)]
    consumer.acknowledge(first[1])
    for m in (first[0], first[2]):
        consumer.negative_acknowledge(m)
    again = sorted(
        (m.data(), m.redelivery_count()) for m in (consumer.receive(timeout_millis=PATIENCE_MS) for _ in range(2))
    )
    consumer.redeliver_unacknowledged_messages()
    third = sorted(
        (m.data(), m.redelivery_count()) for m in (consumer.receive(timeout_millis=PATIENCE_MS) for _ in range(2))
    )
    return again, third


def cumulative_and_seek(side: Side) -> Any:
    topic = "same-seek"
    consumer = side.client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = side.client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(str(n).encode()) for n in range(10)]
    seen = [consumer.receive(timeout_millis=PATIENCE_MS) for _ in range(6)]
    consumer.acknowledge_cumulative(seen[3])
    consumer.close()
    consumer = side.client.subscribe(topic, "s")
    after = drain(consumer, 6)
    consumer.seek(ids[2])
    sought = consumer.receive(timeout_millis=PATIENCE_MS).data()
    consumer.seek(pulsar.MessageId.earliest)
    return (
        after,
        sought,
        consumer.receive(timeout_millis=PATIENCE_MS).data(),
        consumer.get_last_message_id().entry_id() == ids[9].entry_id(),
    )


def reader_from_a_message(side: Side) -> Any:
    topic = "same-reader"
    producer = side.client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(str(n).encode()) for n in range(6)]
    out = []
    for inclusive in (False, True):
        reader = side.client.create_reader(topic, ids[3], start_message_id_inclusive=inclusive)
        out.append(reader.read_next(timeout_millis=PATIENCE_MS).data())
    latest = side.client.create_reader(topic, pulsar.MessageId.latest)
    return out, latest.has_message_available()


def partitions(side: Side) -> Any:
    created = side.rest("PUT", "/persistent/public/default/same-parts/partitions", 3)
    producer = side.client.create_producer(
        "same-parts", message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    consumer = side.client.subscribe("same-parts", "s", initial_position=pulsar.InitialPosition.Earliest)
    for n in range(9):
        producer.send(str(n).encode())
    count = side.rest("GET", "/persistent/public/default/same-parts/partitions")[1]["partitions"]
    return created[0], sorted(drain(consumer, 9)), side.client.get_topic_partitions("same-parts"), count


def admin_codes(side: Side) -> Any:
    rest = side.rest
    me = rest("GET", "/clusters")[1][0] if rest("GET", "/clusters")[1] else "standalone"
    return [
        rest("PUT", "/tenants/same", {"adminRoles": ["a"], "allowedClusters": [me]})[0],
        rest("PUT", "/tenants/same", {"adminRoles": [], "allowedClusters": [me]})[0],
        rest("GET", "/tenants/absent")[0],
        rest("PUT", "/namespaces/same/ns", {})[0],
        rest("PUT", "/namespaces/same/ns", {})[0],
        rest("PUT", "/namespaces/absent/ns", {})[0],
        rest("GET", "/namespaces/same")[1],
        rest("DELETE", "/tenants/same")[0],
        rest("PUT", "/persistent/same/ns/t", None)[0],
        rest("PUT", "/persistent/same/ns/t", None)[0],
        rest("GET", "/persistent/same/ns")[1],
        rest("GET", "/persistent/same/ns/absent/stats")[0],
        rest("PUT", "/persistent/same/ns/t/subscription/s", None)[0],
        rest("GET", "/persistent/same/ns/t/subscriptions")[1],
        rest("DELETE", "/persistent/same/ns/t/subscription/s")[0],
        rest("DELETE", "/namespaces/same/ns")[0],
        rest("DELETE", "/persistent/same/ns/t")[0],
        rest("DELETE", "/persistent/same/ns/t")[0],
    ]


def stats_names(side: Side) -> Any:
    topic = "same-stats"
    producer = side.client.create_producer(topic, "p", batching_enabled=False)
    consumer = side.client.subscribe(topic, "s", consumer_name="c")
    for _ in range(4):
        producer.send(b"x" * 100)
    consumer.acknowledge(consumer.receive(timeout_millis=PATIENCE_MS))
    stats = side.rest("GET", f"/persistent/public/default/{topic}/stats")[1]
    subscription = stats["subscriptions"]["s"]
    return (
        stats["msgInCounter"],
        [p["producerName"] for p in stats["publishers"]],
        [c["consumerName"] for c in subscription["consumers"]],
        subscription["type"],
        stats["replication"],
    )


def key_shared(side: Side) -> Any:
    topic, keyed = "same-keys", pulsar.ConsumerType.KeyShared
    policies = [
        pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, False, [cut])
        for cut in ((0, 20_000), (20_001, 65_535), (10_000, 30_000))
    ]
    low = side.client.subscribe(topic, "s", keyed, key_shared_policy=policies[0])
    high = side.client.subscribe(topic, "s", keyed, key_shared_policy=policies[1])
    overlap = error_of(lambda: side.client.subscribe(topic, "s", keyed, key_shared_policy=policies[2]))
    producer = side.client.create_producer(topic, batching_enabled=False)
    for n in range(40):
        producer.send(str(n).encode(), partition_key=f"k{n}")
    found = shares((low, high), 40)
    low.close()
    high.close()
    return overlap, found


def shares(consumers: tuple[Any, ...], count: int) -> list[list[bytes]]:
    """What each of them gets of so many messages, sorted."""
    out: list[list[bytes]] = [[] for _ in consumers]
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while sum(map(len, out)) < count and time.monotonic() < deadline:
        for consumer, mine in zip(consumers, out, strict=True):
            try:
                mine.append(consumer.receive(timeout_millis=50).data())
            except pulsar.Timeout:
                continue
    return [sorted(mine) for mine in out]


def delayed(side: Side) -> Any:
    topic = "same-delayed"
    shared = side.client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    plain = side.client.subscribe(topic, "plain")
    producer = side.client.create_producer(topic)
    seen: list[list[bytes]] = []
    for seconds in (
        3,
        15,
        50,
    ):  # where a delay was over before the other message was there, nothing is shown: again, with a longer one
        producer.send(b"late", deliver_after=timedelta(seconds=seconds))
        producer.send(b"now")
        seen = [drain(plain, 2), drain(shared, 2)]
        if seen[1][0] == b"now":
            break
    return seen


def access_modes(side: Side) -> Any:
    topic, modes = "same-modes", pulsar.ProducerAccessMode
    first = side.client.create_producer(topic, access_mode=modes.Exclusive)
    errors = [
        error_of(lambda mode=mode: side.client.create_producer(topic, access_mode=mode))
        for mode in (modes.Exclusive, modes.Shared)
    ]  # type: ignore[misc]
    second = side.client.create_producer(topic, access_mode=modes.ExclusiveWithFencing)
    second.send(b"x")
    errors.append(error_of(lambda: first.send(b"y")))
    second.close()
    return errors


def non_persistent(side: Side) -> Any:
    topic = "non-persistent://public/default/same-np"
    producer = side.client.create_producer(topic, batching_enabled=False)
    lost = producer.send(b"lost")
    consumer = side.client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer.send(b"seen")
    return drain(consumer, 1), lost.ledger_id(), lost.entry_id()


_INT, _LONG = {"name": "a", "type": "int"}, {"name": "a", "type": "long"}
_OPTIONAL, _REQUIRED = {"name": "b", "type": ["null", "string"], "default": None}, {"name": "c", "type": "string"}
_STEPS = (
    ("AVRO", [_INT]),
    ("AVRO", [_LONG]),
    ("AVRO", [_LONG, _OPTIONAL]),
    ("AVRO", [_OPTIONAL]),
    ("AVRO", [_INT, _REQUIRED]),
    ("AVRO", [_INT]),
    ("JSON", [_INT]),
    ("STRING", None),
    ("BYTES", None),
)
_WAYS = ("BACKWARD", "FORWARD", "FULL")
_STRATEGIES = ("UNDEFINED", *_WAYS, *(f"{way}_TRANSITIVE" for way in _WAYS), "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE")


def schema_strategies(side: Side) -> Any:
    out: list[Any] = []
    for strategy in _STRATEGIES:
        namespace = f"public/same-{strategy.lower()}"
        out.append(side.rest("PUT", f"/namespaces/{namespace}", {})[0])
        out.append(side.rest("PUT", f"/namespaces/{namespace}/schemaCompatibilityStrategy", strategy)[0])
        for kind, fields in _STEPS:
            text = "" if fields is None else json.dumps({"type": "record", "name": "R", "fields": fields})
            out.append(
                side.rest("POST", f"/schemas/{namespace}/t/schema", {"type": kind, "schema": text, "properties": {}})
            )
        out.append(
            [row["version"] for row in side.rest("GET", f"/schemas/{namespace}/t/schemas")[1]["getSchemaResponses"]]
        )
    return out


def schema_lives(side: Side) -> Any:
    of, out = "/schemas/public/default/same-lives", []
    one = {
        "type": "AVRO",
        "schema": json.dumps({"type": "record", "name": "R", "fields": [_INT]}),
        "properties": {"k": "v"},
    }
    for method, path, body in (
        ("GET", "schema", None),
        ("GET", "schemas", None),
        ("POST", "schema", one),
        ("POST", "schema", one),
        ("POST", "version", one),
        ("GET", "schema", None),
        ("GET", "schema/0", None),
        ("GET", "schema/7", None),
        ("POST", "schema", {"type": "AVRO", "schema": "nonsense", "properties": {}}),
        ("DELETE", "schema", None),
        ("GET", "schema", None),
        ("GET", "schema/0", None),
        ("POST", "schema", {"type": "STRING", "schema": "", "properties": {}}),
        ("GET", "schemas", None),
    ):
        code, answer = side.rest(method, f"{of}/{path}", body)
        for row in (answer or {}).get("getSchemaResponses", [answer or {}]):
            row.pop("timestamp", None)
        out.append((code, answer))
    return out


class _One(pulsar.schema.Record):  # type: ignore[misc]
    a = pulsar.schema.Integer()


class _Other(pulsar.schema.Record):  # type: ignore[misc]
    a = pulsar.schema.Integer()
    c = pulsar.schema.Integer(required=True)


def schema_of_clients(side: Side) -> Any:
    avro, json_schema, text, raw = (
        pulsar.schema.AvroSchema,
        pulsar.schema.JsonSchema,
        pulsar.schema.StringSchema,
        pulsar.schema.BytesSchema,
    )

    def produce(topic: str, schema: Any) -> str:
        return error_of(lambda: side.client.create_producer(topic, schema=schema).close())

    def consume(topic: str, schema: Any) -> str:
        return error_of(lambda: side.client.subscribe(topic, "s", schema=schema).close())

    out = [produce("same-sp", schema) for schema in (avro(_One), avro(_Other), json_schema(_One), text(), raw())]
    out += [consume("same-sp", schema) for schema in (avro(_One), avro(_Other), json_schema(_One), text(), raw())]
    out += [consume("same-sc", avro(_One)), consume("same-sc", avro(_Other)), produce("same-sc", avro(_One))]
    plain = side.client.create_producer("same-sm")
    plain.send(b"x")
    plain.close()
    out += [consume("same-sm", avro(_One)), produce("same-sm", avro(_One)), consume("same-sm", avro(_Other))]
    side.rest("PUT", "/namespaces/public/same-enforced", {})
    side.rest("POST", "/namespaces/public/same-enforced/schemaValidationEnforced", True)
    side.rest("POST", "/namespaces/public/same-enforced/isAllowAutoUpdateSchema", False)
    topic = "public/same-enforced/t"
    out += [produce(topic, raw()), produce(topic, avro(_One))]
    text_of = pulsar.schema.AvroSchema(_One).schema_info().schema()
    out.append(
        str(
            side.rest(
                "POST", "/schemas/public/same-enforced/t/schema", {"type": "AVRO", "schema": text_of, "properties": {}}
            )[0]
        )
    )
    out += [produce(topic, avro(_One)), produce(topic, avro(_Other)), produce(topic, raw()), consume(topic, raw())]
    return out


SCENARIOS = (
    schema_strategies,
    schema_lives,
    schema_of_clients,
    key_shared,
    delayed,
    access_modes,
    non_persistent,
    publish_and_read,
    exclusive_is_busy,
    producer_of_the_same_name,
    redelivery,
    cumulative_and_seek,
    reader_from_a_message,
    partitions,
    admin_codes,
    stats_names,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_the_answers_are_the_same(sides: tuple[Side, Side], scenario: Callable[[Side], Any]) -> None:
    ours, theirs = sides
    assert scenario(ours) == scenario(theirs)


NAMESPACE, TOPIC = "/namespaces/public/policies", "/persistent/public/policies/t"
UNSET_OF_NAMESPACE = (
    "messageTTL",
    "retention",
    "persistence",
    "autoTopicCreation",
    "autoSubscriptionCreation",
    "deduplication",
    "delayedDelivery",
    "inactiveTopicPolicies",
    "subscriptionExpirationTime",
    "compactionThreshold",
    "dispatchRate",
    "subscribeRate",
    "publishRate",
    "maxProducersPerTopic",
    "maxConsumersPerTopic",
    "maxTopicsPerNamespace",
    "maxSubscriptionsPerTopic",
    "maxUnackedMessagesPerConsumer",
    "schemaCompatibilityStrategy",
    "schemaValidationEnforced",
    "isAllowAutoUpdateSchema",
    "encryptionRequired",
    "subscriptionAuthMode",
    "offloadPolicies",
    "offloadThreshold",
    "offloadDeletionLagMs",
    "properties",
    "subscriptionTypesEnabled",
    "entryFilters",
    "resourcegroup",
    "backlogQuotaMap",
    "antiAffinity",
    "schemaAutoUpdateCompatibilityStrategy",
)
UNSET_OF_TOPIC = (
    "messageTTL",
    "retention",
    "maxProducers",
    "maxConsumers",
    "maxConsumersPerSubscription",
    "maxSubscriptionsPerTopic",
    "maxMessageSize",
    "persistence",
    "dispatchRate",
    "publishRate",
    "subscribeRate",
    "deduplicationEnabled",
    "compactionThreshold",
    "inactiveTopicPolicies",
    "subscriptionTypesEnabled",
    "maxProducers?applied=true",
    "messageTTL?applied=true",
    "retention?applied=true",
    "dispatchRate?applied=true",
    "backlogQuotaMap?applied=true",
)
SET_OF_NAMESPACE: tuple[tuple[str, str, Any], ...] = (
    ("POST", "messageTTL", 5),
    ("POST", "messageTTL", -5),
    ("POST", "retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}),
    ("POST", "persistence", {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}),
    ("POST", "backlogQuota", {"limitSize": 100_000_000_000, "policy": "producer_exception"}),
    ("POST", "backlogQuota", {"limitSize": 1000, "policy": "producer_exception"}),
    ("POST", "maxProducersPerTopic", -1),
    ("POST", "maxProducersPerTopic", 3),
    (
        "POST",
        "autoTopicCreation",
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
    ),
    ("POST", "autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "partitioned"}),
    ("POST", "subscriptionTypesEnabled", ["Shared"]),
    ("PUT", "compactionThreshold", 100),
    ("PUT", "schemaCompatibilityStrategy", "FORWARD"),
    ("POST", "deduplication", True),
    ("POST", "resourcegroup/none", None),
    ("POST", "entryFilters", {"entryFilterNames": "x"}),
    ("POST", "replication", ["nowhere"]),
)
READ_BACK = (
    "messageTTL",
    "retention",
    "backlogQuotaMap",
    "maxProducersPerTopic",
    "autoTopicCreation",
    "subscriptionTypesEnabled",
    "deduplication",
)


def _policies(side: Side) -> list[Any]:
    """What is unset, set, refused, and unset again."""
    found = [side.rest("PUT", NAMESPACE, {})]
    found += [side.rest("GET", f"{NAMESPACE}/{name}") for name in UNSET_OF_NAMESPACE]
    found += [
        side.rest("PUT", TOPIC),
        side.rest("PUT", TOPIC),
        side.rest("GET", "/persistent/public/policies/none/partitions"),
    ]
    found += [side.rest("GET", f"{TOPIC}/{name}") for name in UNSET_OF_TOPIC]
    found += [side.rest(method, f"{NAMESPACE}/{name}", body) for method, name, body in SET_OF_NAMESPACE]
    found += [side.rest("GET", f"{NAMESPACE}/{name}") for name in READ_BACK]
    found[-len(READ_BACK) + READ_BACK.index("backlogQuotaMap")][1].pop(
        "message_age", None
    )  # Pulsar keeps a default that it once filled in for `applied`
    found += [side.rest("PUT", f"{TOPIC}/subscription/s"), side.rest("PUT", f"{TOPIC}/subscription/s")]
    found += [
        side.rest("POST", f"{TOPIC}/subscription/none/skip_all"),
        side.rest("DELETE", TOPIC),
        side.rest("DELETE", TOPIC),
    ]
    return found


def test_policies_over_http(sides: tuple[Side, Side]) -> None:
    ours, theirs = (_policies(side) for side in sides)
    assert ours == theirs
