"""The official client against a real region: what it can reach of subscriptions, acknowledgements, producers, and
watchers.
"""

from __future__ import annotations

import contextlib
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pulsar
import pytest

from region_node.subscriptions.sticky_keys import key_hash
from tests.region_node.either import ORACLE, Either
from tests.region_node.live import TOPICS, until
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.either, pytest.mark.wan, pytest.mark.slow]

SHARED, KEYED = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
EARLIEST = pulsar.InitialPosition.Earliest
PATIENCE_S, PATIENCE_MS = 120.0, 120_000


def drain(consumer: Any, count: int) -> list[Any]:
    """So many messages; acknowledges nothing."""
    return [consumer.receive(timeout_millis=PATIENCE_MS) for _ in range(count)]


def more(consumer: Any, wait_ms: int = 300) -> list[Any]:
    """What comes until nothing does for a moment. Where nothing must come: that may be too early to show it, and never
    fails for it.
    """
    out: list[Any] = []
    with contextlib.suppress(pulsar.Timeout):
        while True:
            out.append(consumer.receive(timeout_millis=wait_ms))
    return out


def shares(consumers: tuple[Any, ...], count: int) -> list[list[Any]]:
    """What each of them gets of so many messages."""
    out: list[list[Any]] = [[] for _ in consumers]

    def all_came() -> bool:
        for consumer, mine in zip(consumers, out, strict=True):
            mine += more(consumer, 50)
        return sum(map(len, out)) >= count

    until(all_came)
    return out


# -- Key_Shared


def test_key_shared_keeps_each_key_at_one_consumer_and_in_order(client: pulsar.Client) -> None:
    topic = "keys"
    first = client.subscribe(topic, "s", KEYED, initial_position=EARLIEST)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased, batching_max_publish_delay_ms=5
    )
    for n in range(100):
        producer.send_async(str(n).encode(), None, partition_key=f"k{n % 20}")
    producer.flush()
    got = drain(first, 100)
    second = client.subscribe(topic, "s", KEYED)
    for n in range(100, 200):
        producer.send_async(str(n).encode(), None, partition_key=f"k{n % 20}")
    producer.flush()
    assert more(second) == []
    for message in got:
        first.acknowledge(message)
    late, kept = shares((second, first), 100)
    assert len(late) + len(kept) == 100 and {m.partition_key() for m in late}.isdisjoint(
        m.partition_key() for m in kept
    )
    for messages in (got, late, kept):
        for key in {m.partition_key() for m in messages}:
            mine = [int(m.data()) for m in messages if m.partition_key() == key]
            assert mine == sorted(mine)
    second.close()
    again = sorted(int(m.data()) for m in drain(first, len(late)))
    assert again == sorted(int(m.data()) for m in late)
    first.close()


def test_sticky_ranges(client: pulsar.Client) -> None:
    def policy(*ranges: tuple[int, int]) -> Any:
        return pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, False, list(ranges))

    low = client.subscribe("sticky", "s", KEYED, key_shared_policy=policy((0, 29_999)))
    with pytest.raises(pulsar.ConsumerAssignError):
        client.subscribe("sticky", "s", KEYED, key_shared_policy=policy((20_000, 40_000)))
    high = client.subscribe("sticky", "s", KEYED, key_shared_policy=policy((30_000, 65_535)))
    producer = client.create_producer("sticky", batching_enabled=False)
    for n in range(60):
        producer.send(b"x", ordering_key=f"o{n}", partition_key="same")
    got = [{m.ordering_key() for m in mine} for mine in shares((low, high), 60)]
    want = {f"o{n}" for n in range(60) if key_hash(f"o{n}".encode()) < 30_000}
    assert got[0] == want and len(got[0]) + len(got[1]) == 60
    low.close()
    high.close()


# -- acknowledgements of parts of batches


@pytest.mark.parametrize(
    "kind",
    [SHARED, KEYED, pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover],
    ids=lambda k: str(k).split(".")[-1],
)
def test_what_was_acknowledged_of_a_batch_does_not_come_again(client: pulsar.Client, kind: Any) -> None:
    topic = f"parts-{kind}".replace(".", "-")
    consumer = client.subscribe(topic, "s", kind, batch_index_ack_enabled=True)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    for n in range(10):
        producer.send_async(str(n).encode(), None)
    producer.flush()
    got = drain(consumer, 10)
    for message in got[::2]:
        consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe(topic, "s", kind, batch_index_ack_enabled=True)
    again = drain(consumer, 5) + more(consumer)
    assert [int(m.data()) for m in again] == [1, 3, 5, 7, 9]
    for message in again[:2]:
        consumer.acknowledge(message)
    rounds: list[list[int]] = []

    def redelivered() -> list[int]:
        consumer.redeliver_unacknowledged_messages()
        rounds.append(sorted({int(m.data()) for m in drain(consumer, 3) + more(consumer)}))
        return rounds[-1]

    until(lambda: redelivered() == [5, 7, 9])  # the client gathers acknowledgements, and asks for redelivery at once
    assert all({5, 7, 9} <= set(came) <= {1, 3, 5, 7, 9} for came in rounds)
    consumer.close()


# -- delayed delivery


@pytest.mark.parametrize("kind", [SHARED, KEYED], ids=lambda k: str(k).split(".")[-1])
def test_delayed_messages(client: pulsar.Client, kind: Any) -> None:
    topic = f"delayed-{kind}".replace(".", "-")
    consumer = client.subscribe(topic, "s", kind)
    plain = client.subscribe(topic, "plain")
    producer = client.create_producer(topic)
    order: list[bytes] = []
    for unit_s in (
        0.8,
        5.0,
        20.0,
    ):  # on a machine so busy that a delay is over before all have been sent: again, with longer ones
        begun = time.time()
        producer.send(b"late", deliver_after=timedelta(seconds=2 * unit_s))
        producer.send(b"now")
        producer.send(b"at", deliver_at=int((begun + unit_s) * 1000))
        assert [m.data() for m in drain(plain, 3)] == [b"late", b"now", b"at"]
        came = [(consumer.receive(timeout_millis=60_000).data(), time.time() - begun) for _ in range(3)]
        due_s = {b"now": 0.0, b"at": unit_s, b"late": 2 * unit_s}
        assert all(after_s >= due_s[data] - 0.002 for data, after_s in came), "times of messages are whole milliseconds"
        order = [data for data, _ in came]
        if order == [b"now", b"at", b"late"]:
            break
    assert order == [b"now", b"at", b"late"]
    for each in (consumer, plain):
        each.close()


# -- chunks


def test_large_messages_on_a_shared_subscription(client: pulsar.Client) -> None:
    """Of two producers at once, to two consumers: each message arrives whole at one of them."""
    consumers = [client.subscribe("large", "s", SHARED, receiver_queue_size=4) for _ in range(2)]
    producers = [
        client.create_producer("large", chunking_enabled=True, batching_enabled=False, send_timeout_millis=120_000)
        for _ in range(2)
    ]
    bodies = [bytes([65 + i]) * (11 << 20) for i in range(4)]
    for index, body in enumerate(bodies):
        producers[index % 2].send_async(body, None)
    got: list[bytes] = []

    def poll() -> bool:
        for consumer in consumers:
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            got.append(message.data())
        return len(got) == 4

    until(poll)
    assert sorted(got) == bodies
    for one in (*consumers, *producers):
        one.close()


def test_large_messages_of_a_producer_that_is_deduplicated(region: Either, client: pulsar.Client) -> None:
    """All pieces of one message have its sequence; only the last one is judged."""
    rest, topic = Rest(region.admin_url()), "large-once"
    client.subscribe(
        topic, "s"
    ).close()  # a consumer that reconnects between two pieces of a message gives it up, whichever server it has
    assert rest("POST", f"{TOPICS}/{topic}/deduplicationEnabled", True)[0] == 204
    until(lambda: rest("GET", f"{TOPICS}/{topic}/deduplicationEnabled")[1] is True)
    until(lambda: rest("GET", f"{TOPICS}/{topic}/stats")[1]["deduplicationStatus"] == "Enabled")
    producer = client.create_producer(
        topic, "p", chunking_enabled=True, batching_enabled=False, send_timeout_millis=120_000
    )
    bodies = [bytes([65 + i]) * (11 << 20) for i in range(3)]
    for index, body in enumerate(bodies):
        producer.send(body)
        if index == 1:
            assert rest("PUT", f"{TOPICS}/{topic}/unload")[0] == 204
    consumer = client.subscribe(topic, "s", receiver_queue_size=4)
    assert [message.data() for message in drain(consumer, 3)] == bodies
    producer.send(b"again", sequence_id=2)  # a plain one under the last sequence
    producer.send(b"new", sequence_id=3)
    assert drain(consumer, 1)[0].data() == b"new"
    producer.close()
    consumer.close()


# -- topic lists


def test_a_pattern_finds_its_topics(client: pulsar.Client) -> None:
    for name in ("list-a", "list-b", "other"):
        client.create_producer(name).send(name.encode())
    consumer = client.subscribe(re.compile("public/default/list-.*"), "s", initial_position=EARLIEST)
    assert sorted(m.data() for m in drain(consumer, 2) + more(consumer)) == [b"list-a", b"list-b"]
    consumer.close()


# -- exclusive producers


def test_access_modes(region: Either, client: pulsar.Client) -> None:
    modes = pulsar.ProducerAccessMode
    first = client.create_producer("modes", access_mode=modes.Exclusive)
    for mode, error in ((modes.Exclusive, pulsar.ProducerFenced), (modes.Shared, pulsar.ProducerBusy)):
        with pytest.raises(error):
            client.create_producer("modes", access_mode=mode)
    second = client.create_producer("modes", access_mode=modes.ExclusiveWithFencing)
    second.send(b"mine")
    with pytest.raises(pulsar.PulsarException):
        first.send(b"no more")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.create_producer, "modes", access_mode=modes.WaitForExclusive)
        until(
            lambda: (
                Rest(region.admin_url())("GET", "/admin/v2/persistent/public/default/modes/stats")[1][
                    "waitingPublishers"
                ]
                == 1
            )
        )
        assert not waiting.done()
        second.close()
        third = waiting.result(60)
    third.send(b"mine now")
    third.close()


# -- non-persistent topics


@pytest.mark.parametrize(
    "kind",
    [SHARED, KEYED, pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover],
    ids=lambda k: str(k).split(".")[-1],
)
def test_non_persistent_topics(client: pulsar.Client, kind: Any) -> None:
    topic = f"non-persistent://public/default/np-{kind}".replace("ConsumerType.", "")
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"nobody is there")
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    for n in range(300):
        producer.send(str(n).encode())
        if n % 100 == 99:
            got = drain(consumer, 100)
            assert sorted(int(m.data()) for m in got) == list(range(n - 99, n + 1))
            for message in got:
                consumer.acknowledge(message)
    consumer.close()
    producer.close()


# -- what outlives a topic that moves


@pytest.mark.skipif(ORACLE, reason="Pulsar's unackedMessages does not count the messages of a batch one by one")
def test_parts_of_batches_delays_and_epochs_outlive_an_unload(region: Either, client: pulsar.Client) -> None:
    rest, topic = Rest(region.admin_url()), "unloaded"
    consumer = client.subscribe(topic, "s", SHARED, batch_index_ack_enabled=True)
    batched = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    begun = time.time()
    batched.send_async(b"late", None, deliver_at=int(begun * 1000) + 8000)
    for n in range(6):
        batched.send_async(str(n).encode(), None)
    batched.flush()
    got = drain(consumer, 6)
    for message in got[:4]:
        consumer.acknowledge(message)
    until(
        lambda: (
            rest("GET", f"/admin/v2/persistent/public/default/{topic}/stats")[1]["subscriptions"]["s"][
                "unackedMessages"
            ]
            == 2
        )
    )
    assert rest("PUT", f"/admin/v2/persistent/public/default/{topic}/unload")[0] == 204
    assert [m.data() for m in drain(consumer, 3)] == [b"4", b"5", b"late"] and time.time() - begun >= 8
    batched.send(b"goes on")
    assert drain(consumer, 1)[0].data() == b"goes on"
    consumer.close()


# -- schemas


class _One(pulsar.schema.Record):  # type: ignore[misc]
    a = pulsar.schema.Integer()


class _More(pulsar.schema.Record):  # type: ignore[misc]
    a = pulsar.schema.Integer()
    b = pulsar.schema.String(default="none")


def test_schemas_are_kept_checked_and_given_out(region: Either, client: pulsar.Client) -> None:
    rest = Rest(region.admin_url())
    base = "/admin/v2/schemas/public/default/schemas"
    one, more = pulsar.schema.JsonSchema(_One), pulsar.schema.JsonSchema(_More)
    consumer = client.subscribe("schemas", "s", schema=one)  # the first one to come says what the topic is for
    assert rest("GET", f"{base}/schema")[1]["type"] == "JSON"
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("schemas", schema=pulsar.schema.StringSchema())
    assert rest("PUT", "/admin/v2/namespaces/public/default/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")[0] == 204
    made: list[Any] = []

    def allowed() -> bool:  # Pulsar takes a moment until the new strategy holds
        with contextlib.suppress(pulsar.IncompatibleSchema):
            made.append(client.create_producer("schemas", schema=more))
        return bool(made)

    until(allowed)
    producer = made[0]
    producer.send(_More(a=1, b="x"))
    assert consumer.receive(timeout_millis=60_000).value().a == 1
    assert [row["version"] for row in rest("GET", f"{base}/schemas")[1]["getSchemaResponses"]] == [0, 1]
    strategy = {"type": "AVRO", "schema": one.schema_info().schema(), "properties": {}}
    assert rest("POST", f"{base}/compatibility", strategy) == (
        202,
        {"compatibility": True, "schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE"},
    )
    assert rest("PUT", "/admin/v2/namespaces/public/default/schemaCompatibilityStrategy", "UNDEFINED")[0] == 204
    if not ORACLE:  # Pulsar answers 500 with a stack trace
        assert rest("POST", f"{base}/compatibility", strategy)[1] == {
            "compatibility": False,
            "schemaCompatibilityStrategy": "FULL",
        }
    assert (
        rest("POST", f"{base}/schema", strategy)[0] == 409
        and rest("POST", f"{base}/schema", {"type": "AVRO", "schema": "?"})[0] == 422
    )
    assert rest("DELETE", f"{base}/schema") == (200, {"version": 2}) and rest("GET", f"{base}/schema")[0] == 404
    assert rest("POST", f"{base}/schema", strategy) == (200, {"version": {"version": 3}})
    producer.close()
    consumer.close()


# -- what is not acknowledged


def test_what_is_refused_often_enough_becomes_a_dead_letter(region: Either, client: pulsar.Client) -> None:
    """Its topic, and there the initial subscription, come with the first one, before anybody consumes them: so that
    nothing of it can be lost.
    """
    rest, dead = Rest(region.admin_url()), "letters-s-DLQ"
    policy = pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=2, initial_subscription_name="held")
    consumer = client.subscribe("letters", "s", SHARED, negative_ack_redelivery_delay_ms=100, dead_letter_policy=policy)
    producer = client.create_producer("letters", batching_enabled=False)
    for data in (b"good", b"poison"):
        producer.send(data, partition_key="k")
    tries: list[int] = []
    while len(tries) < 3:
        message = consumer.receive(timeout_millis=PATIENCE_MS)
        if message.data() == b"poison":
            tries.append(message.redelivery_count())
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    assert tries == [0, 1, 2]

    def backlog(topic: str, subscription: str) -> int | None:
        status, stats = rest("GET", f"{TOPICS}/{topic}/stats")
        found = stats["subscriptions"].get(subscription) if status == 200 else None
        return None if found is None else found["msgBacklog"]

    until(lambda: backlog(dead, "held") == 1, PATIENCE_S)
    until(lambda: backlog("letters", "s") == 0, PATIENCE_S)
    letters = client.subscribe(dead, "held")  # from the end of the topic, if it were new
    letter = letters.receive(timeout_millis=PATIENCE_MS)
    assert (letter.data(), letter.partition_key()) == (b"poison", "k") and letter.properties()["REAL_TOPIC"].endswith(
        "/letters"
    )
    assert more(consumer) == []
    for each in (consumer, letters, producer):
        each.close()


def test_refused_and_forgotten_messages_come_again(client: pulsar.Client) -> None:
    """At once where a consumer refuses them; where it says nothing, after its time (the client takes 10 s and more).
    What was acknowledged does not.
    """
    consumer = client.subscribe(
        "again", "s", SHARED, negative_ack_redelivery_delay_ms=100, unacked_messages_timeout_ms=10_000
    )
    producer = client.create_producer("again", batching_enabled=False)
    for n in range(3):
        producer.send(str(n).encode())
    first = drain(consumer, 3)
    assert [m.data() for m in first] == [b"0", b"1", b"2"]
    consumer.acknowledge(first[1])
    consumer.negative_acknowledge(first[2])
    (refused,) = drain(consumer, 1)
    while refused.data() != b"2":  # on a machine so busy that the others' time was over first
        (refused,) = drain(consumer, 1)
    assert refused.redelivery_count() >= 1
    consumer.acknowledge(refused)
    forgotten = consumer.receive(timeout_millis=PATIENCE_MS)
    assert forgotten.data() == b"0" and forgotten.redelivery_count() >= 1
    consumer.acknowledge(forgotten)
    consumer.close()


# -- from where


def test_seek_by_id_and_by_time(client: pulsar.Client) -> None:
    consumer = client.subscribe("sought", "s", initial_position=EARLIEST, start_message_id_inclusive=True)
    producer = client.create_producer("sought", batching_enabled=False)
    ids = [producer.send(str(n).encode()) for n in range(3)]
    between_ms = int(time.time() * 1000) + 2
    until(lambda: time.time() * 1000 > between_ms + 2)
    ids += [producer.send(str(n).encode()) for n in range(3, 6)]
    assert [m.data() for m in drain(consumer, 6)] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    for to, begins in ((ids[4], 4), (pulsar.MessageId.earliest, 0), (between_ms, 3), (ids[1], 1)):
        consumer.seek(to)
        assert [int(m.data()) for m in drain(consumer, 6 - begins)] == list(range(begins, 6)), to
    consumer.seek(pulsar.MessageId.latest)
    producer.send(b"new")
    assert [m.data() for m in drain(consumer, 1)] == [b"new"]
    consumer.close()
    producer.close()


@pytest.mark.parametrize("batched", [False, True], ids=["plain", "batched"])
def test_readers_begin_with_their_message_or_after_it(client: pulsar.Client, batched: bool) -> None:
    """Also inside of a batch. A reader leaves nothing behind, and says whether there is more."""
    topic = f"read-{batched}"
    producer = client.create_producer(topic, batching_enabled=batched, batching_max_publish_delay_ms=200)
    sent: list[Any] = []
    for n in range(6):
        producer.send_async(str(n).encode(), lambda _result, made: sent.append(made))
    producer.flush()
    until(lambda: len(sent) == 6, PATIENCE_S)
    for inclusive, begins in ((True, 3), (False, 4)):
        reader = client.create_reader(topic, sent[3], start_message_id_inclusive=inclusive)
        assert [int(reader.read_next(timeout_millis=PATIENCE_MS).data()) for _ in range(begins, 6)] == list(
            range(begins, 6)
        )
        assert not reader.has_message_available()
        reader.close()
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    assert not reader.has_message_available()
    producer.send(b"new")
    assert reader.has_message_available() and reader.read_next(timeout_millis=PATIENCE_MS).data() == b"new"
    reader.close()
    producer.close()


# -- tables, and ends


def test_a_table_view_follows_its_topic(region: Either, client: pulsar.Client) -> None:
    """The last value of each key: of what was there, compacted, and of what comes; an empty one takes the key out."""
    rest = Rest(region.admin_url())
    producer = client.create_producer("table", batching_enabled=False)
    for key, value in (("a", b"1"), ("b", b"2"), ("c", b"3"), ("a", b"4"), ("c", b"")):
        producer.send(value, partition_key=key)
    assert rest("PUT", f"{TOPICS}/table/compaction")[0] == 204
    until(lambda: rest("GET", f"{TOPICS}/table/compaction")[1]["status"] == "SUCCESS", PATIENCE_S)
    table = client.create_table_view("table")

    def rows() -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        table.for_each(found.__setitem__)
        return found

    until(lambda: rows() == {"a": b"4", "b": b"2"}, PATIENCE_S)
    assert table.get("a") == b"4" and table.get("c") is None
    for key, value in (("b", b""), ("d", b"5")):
        producer.send(value, partition_key=key)
    until(lambda: rows() == {"a": b"4", "d": b"5"}, PATIENCE_S)
    table.close()
    producer.close()


def test_a_terminated_topic_is_read_to_its_end_and_no_further(region: Either, client: pulsar.Client) -> None:
    """Consumers and reader have a client of their own each: it drops its connection, and what it was about to
    acknowledge on it, when it is told of the end, which it does not understand.
    """
    rest = Rest(region.admin_url())
    own, readers = (
        pulsar.Client(
            region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=60
        )
        for _ in range(2)
    )
    consumer = own.subscribe("ended", "s")
    producer = client.create_producer("ended", batching_enabled=False)
    sent = [producer.send(str(n).encode()) for n in range(3)]
    last = rest("POST", f"{TOPICS}/ended/terminate")[1]
    assert (last["ledgerId"], last["entryId"]) == (sent[2].ledger_id(), sent[2].entry_id())
    with pytest.raises(pulsar.PulsarException):  # TopicTerminated, or AlreadyClosed where the client was told so before
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer("ended")
    late = own.subscribe("ended", "late", initial_position=EARLIEST)
    for each in (consumer, late):
        assert [m.data() for m in drain(each, 3)] == [b"0", b"1", b"2"] and more(each) == []
    reader = readers.create_reader("ended", sent[2], start_message_id_inclusive=True)
    assert reader.read_next(timeout_millis=PATIENCE_MS).data() == b"2"
    consumer.acknowledge_cumulative(sent[2])  # to the end, and it is told of that
    until(lambda: rest("GET", f"{TOPICS}/ended/stats")[1]["subscriptions"]["s"]["msgBacklog"] == 0, PATIENCE_S)
    for each in (own, readers):
        with contextlib.suppress(pulsar.AlreadyClosed):
            each.close()
