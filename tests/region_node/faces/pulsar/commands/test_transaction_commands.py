"""Transactions by raw frames: what every command is answered, what consumers see, and what goes out again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from heliograph.model.errors import HeliographError, NotAllowed, NotFound
from heliograph.wire.pulsar import pulsar_pb2 as pb
from local_meta import keys
from region_node.faces.pulsar.commands.consumer_commands import (
    ACK_IDS_MAX,
    ACK_SET_WORDS_MAX,
)
from region_node.faces.pulsar.session.client_identity import Identity
from region_node.faces.pulsar.session.consuming import UNKNOWN_ACKS_MAX, UNKNOWN_BYTES_MAX
from region_node.transactions.participants import pending_acks
from replicator.log.transaction_buffer import COMMIT, ENDED_MAX, is_marker, marker_run, read_participants
from tests.region_node.faces.pulsar.codec import entry, frame, send
from tests.region_node.faces.pulsar.harness import TOPIC, Client, K, ids, messages
from tests.region_node.transactions.broker import TransactionalBroker, ask, begin, payloads, with_transactions

OTHER = "persistent://public/default/u"
SHARED, KEY_SHARED = 1, 3


async def ack(
    client: Client, txn: dict[str, int] | None, *entries: int, kind: int = 0, ledger: int = 10, **fields: Any
) -> int | None:
    """The error of an ACK; None: it was taken."""
    message_ids = [pb.MessageIdData(ledgerId=ledger, entryId=n, **fields) for n in entries]
    answer = await ask(client, K.ACK, consumer_id=1, ack_type=kind, message_id=message_ids, **(txn or {}))
    return answer.error if answer.HasField("error") else None


async def join(client: Client, txn: dict[str, int]) -> dict[str, int]:
    """The topic and its subscription take part."""
    where = [pb.Subscription(topic=TOPIC, subscription="s")]
    assert not (await ask(client, K.ADD_PARTITION_TO_TXN, partitions=[TOPIC], **txn)).HasField("error")
    assert not (await ask(client, K.ADD_SUBSCRIPTION_TO_TXN, subscription=where, **txn)).HasField("error")
    return txn


async def publish(
    client: Client, sequence: int, payload: bytes, txn: dict[str, int] | None = None, producer_id: int = 1
) -> list[int]:
    came = await client.do(send(producer_id, sequence, entry(payload, sequence=sequence), **(txn or {})))
    return [command.type for command, _ in came if command.type in (K.SEND_RECEIPT, K.SEND_ERROR)]


async def end(client: Client, txn: dict[str, int], action: int = 0) -> int | None:
    answer = await ask(client, K.END_TXN, txn_action=action, **txn)
    return answer.error if answer.HasField("error") else None


def test_what_is_published_in_a_transaction_comes_with_its_commit_and_in_order() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        await client.flow(100)
        assert not (await ask(client, K.TC_CLIENT_CONNECT_REQUEST, tc_id=0)).HasField("error")
        txn = await begin(client)
        assert not (await ask(client, K.ADD_PARTITION_TO_TXN, partitions=[TOPIC], **txn)).HasField("error")
        await publish(client, 0, b"p0")
        seen = len(client.got)
        assert await publish(client, 1, b"t0", txn) == [K.SEND_RECEIPT]
        assert await publish(client, 2, b"p1") == [K.SEND_RECEIPT]
        both = (
            send(1, 3, entry(b"t1", sequence=3), **txn)
            + send(1, 4, entry(b"p2", sequence=4))
            + send(1, 5, entry(b"t2", sequence=5), **txn)
        )
        await client.do(both)
        assert payloads(client.got[seen:]) == []
        assert await end(client, txn) is None
        assert payloads(client.got[seen:]) == [b"t0", b"p1", b"t1", b"p2", b"t2"]
        assert await end(client, txn) is None  # its answer was lost
        assert await end(client, txn, 1) == pb.InvalidTxnStatus
        assert await publish(client, 6, b"t3", txn) == [K.SEND_ERROR]

    with_transactions(test)


@pytest.mark.parametrize("name", ["x" * 4069, "x" * 4096, f"persistent://public/default/{'x' * 4060}", "é" * 900])
def test_a_topic_that_cannot_be_there_joins_no_transaction_and_one_that_has_keeps_it_not_from_ending(name: str) -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        txn = await begin(client)
        where = [pb.Subscription(topic=name, subscription="s")]
        for command, fields in (
            (K.ADD_PARTITION_TO_TXN, {"partitions": [name]}),
            (K.ADD_SUBSCRIPTION_TO_TXN, {"subscription": where}),
        ):
            assert (await ask(client, command, **fields, **txn)).error == pb.NotAllowedError
        coordinator = broker.transactions.loaded[0]
        await coordinator.join(txn["txnid_least_bits"], [name], [(name, "s")])  # as a version before has let it
        await ask(client, K.ADD_PARTITION_TO_TXN, partitions=["t"], **txn)
        assert await publish(client, 0, b"t0", txn) == [K.SEND_RECEIPT]
        await coordinator.close()
        assert await end(client, txn) is None
        other = await begin(client)
        assert broker.transactions.loaded[0].core.low_watermark == other["txnid_least_bits"]

    with_transactions(test)


@pytest.mark.parametrize("why", [NotAllowed("not served in this region"), NotFound("no such namespace")])
@pytest.mark.parametrize("action", [pb.COMMIT, pb.ABORT])
def test_a_topic_of_a_namespace_that_is_not_served_here_any_more_has_ended_its_transactions(
    why: HeliographError, action: pb.TxnAction.ValueType
) -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        txn, other = await begin(client), await begin(client)
        for each in (txn, other):
            await join(client, each)
        ownership, meta = broker.transactions._ownership, broker.transactions._meta
        owner = ownership.owner

        async def refused(topic: str) -> Any:
            raise why

        ownership.owner = refused  # type: ignore[method-assign]
        assert await end(client, txn, action) is None
        await meta.put(keys.managed_ledger(TOPIC), b"it is kept")
        coordinator = broker.transactions.loaded[0]
        number, commit = other["txnid_least_bits"], action == pb.COMMIT
        ends = [await coordinator._end_one(number, commit, [], set(), False, TOPIC, name) for name in (None, "s")]
        assert ends == [False] * 2, "the end is told once the region has the namespace again"
        ownership.owner = owner  # type: ignore[method-assign]
        assert await end(client, other, action) is None

    with_transactions(test)


def test_who_names_more_topics_than_may_take_part_is_refused_before_any_of_them_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        txn, asked = await begin(client), list[Any]()
        monkeypatch.setattr(Identity, "check", lambda self, action, topic: asked.append(topic))
        most = broker.transactions.settings.limits.participants_max
        answer = await ask(client, K.ADD_PARTITION_TO_TXN, partitions=["x"] * (most + 1), **txn)
        assert answer.error == pb.NotAllowedError and "participants_max" in answer.message and not asked
        where = [pb.Subscription(topic="x", subscription="s")] * (most + 1)
        answer = await ask(client, K.ADD_SUBSCRIPTION_TO_TXN, subscription=where, **txn)
        assert answer.error == pb.NotAllowedError and "participants_max" in answer.message
        client.raw(frame(K.ADD_PARTITION_TO_TXN, request_id=90, partitions=["x"] * 1000, **txn))
        for _ in range(100):
            if not asked:
                await asyncio.sleep(0)
        assert len(asked) < 300, "others have their turn meanwhile"
        await client.news()
        assert len(asked) == 1000

    with_transactions(test)


@pytest.mark.parametrize("name", ["t", "public/default/t", TOPIC])
def test_a_topic_takes_part_however_its_name_is_given(name: str) -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        txn = await begin(client)
        assert not (await ask(client, K.ADD_PARTITION_TO_TXN, partitions=[name], **txn)).HasField("error")
        coordinator = broker.transactions.loaded[0]
        assert list(coordinator.core.find(txn["txnid_least_bits"]).partitions) == [name], "as statistics show it"
        before = await begin(client)
        await coordinator.join(before["txnid_least_bits"], [name], [])  # as a version before kept it
        for sequence, each in enumerate((txn, before)):
            assert await publish(client, sequence, b"tx", each) == [K.SEND_RECEIPT]
            assert await end(client, each) is None

    with_transactions(test)


def test_what_was_aborted_is_never_seen_nor_is_it_backlog() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        await client.flow(100)
        txn = await begin(client)
        await ask(client, K.ADD_PARTITION_TO_TXN, partitions=[TOPIC], **txn)
        await publish(client, 0, b"t0", txn)
        await publish(client, 1, b"p0")
        assert await end(client, txn, 1) is None
        await client.news()
        assert payloads(client.got) == [b"p0"]
        assert await ack(client, None, 1) is None
        assert broker.topics.loaded[TOPIC].subscriptions["s"].cursor.mark_delete == (10, 2)

    with_transactions(test)


def test_a_topic_loaded_again_knows_what_is_open_and_what_was_aborted() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        gone, still = await begin(client), await begin(client)
        for txn in (gone, still):
            await ask(client, K.ADD_PARTITION_TO_TXN, partitions=[TOPIC], **txn)
        await publish(client, 0, b"t0", gone)
        await publish(client, 1, b"p0")
        await publish(client, 2, b"t1", still)
        await end(client, gone, 1)
        await broker.topics.unload(TOPIC)
        other = await broker.client()
        await other.subscribe(1, initialPosition=1)
        await other.flow(100)
        assert payloads(other.got) == [b"p0"]
        last = await ask(other, K.GET_LAST_MESSAGE_ID, consumer_id=1)
        assert (last.last_message_id.ledgerId, last.last_message_id.entryId) == (10, 1)
        assert await end(client, still) is None
        await other.news()
        assert payloads(other.got) == [b"p0", b"t1"]

    with_transactions(test)


def test_acknowledgements_hold_with_the_commit_and_come_back_with_an_abort() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, kind=SHARED)
        for n in range(4):
            await publish(client, n, b"p%d" % n)
        assert ids(await client.flow(100)) == [(10, n) for n in range(4)]
        first, second = await begin(client), await begin(client)
        for txn in (first, second):
            answer = await ask(
                client, K.ADD_SUBSCRIPTION_TO_TXN, subscription=[pb.Subscription(topic=TOPIC, subscription="s")], **txn
            )
            assert not answer.HasField("error")
        assert await ack(client, first, 0, 1) is None
        assert await ack(client, second, 1) == pb.TransactionConflict
        assert await ack(client, second, 2) is None
        cursor = broker.topics.loaded[TOPIC].subscriptions["s"].cursor
        assert not cursor.is_acked((10, 0))
        seen = len(client.got)
        assert await end(client, second, 1) is None
        await client.news()
        assert ids(messages(client.got[seen:])) == [(10, 2)]
        assert await end(client, first) is None
        assert cursor.mark_delete == (10, 1)
        assert await ack(client, await join(client, await begin(client)), 0) == pb.TransactionConflict

    with_transactions(test)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED, 0])
def test_what_a_transaction_holds_goes_to_nobody_else_until_it_is_aborted(kind: int) -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, kind=kind)
        for n in range(3):
            await publish(client, n, b"p%d" % n)
        await client.flow(100)
        txn = await begin(client)
        await ask(
            client, K.ADD_SUBSCRIPTION_TO_TXN, subscription=[pb.Subscription(topic=TOPIC, subscription="s")], **txn
        )
        assert await ack(client, txn, 1) is None
        await client.do(frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=900))
        other = await broker.client()
        await other.subscribe(1, kind=kind)
        assert ids(await other.flow(100)) == [(10, 0), (10, 2)]
        assert await ack(other, None, 0, 2) is None
        assert await end(client, txn, 1) is None
        await other.news()
        assert ids(messages(other.got)) == [(10, 0), (10, 2), (10, 1)]

    with_transactions(test)


def test_a_subscription_loaded_again_still_holds_what_was_acknowledged() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        for n in range(4):
            await publish(client, n, b"p%d" % n)
        await client.flow(100)
        txn = await begin(client)
        await ask(
            client, K.ADD_SUBSCRIPTION_TO_TXN, subscription=[pb.Subscription(topic=TOPIC, subscription="s")], **txn
        )
        assert await ack(client, txn, 2, kind=1) is None  # cumulative
        await broker.topics.unload(TOPIC)
        other = await broker.client()
        await other.subscribe(1)
        assert ids(await other.flow(100)) == [(10, 3)]
        assert await ack(other, await join(other, await begin(other)), 3, kind=1) == pb.TransactionConflict
        assert await end(client, txn) is None
        assert broker.topics.loaded[TOPIC].subscriptions["s"].cursor.mark_delete == (10, 2)

    with_transactions(test)


def test_messages_of_a_batch() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, kind=SHARED)
        await client.do(send(1, 0, entry(b"a batch of three..", batch=3), num_messages=3))
        await client.flow(100)
        first, second = await begin(client), await begin(client)
        where = [pb.Subscription(topic=TOPIC, subscription="s")]
        for txn in (first, second):
            await ask(client, K.ADD_SUBSCRIPTION_TO_TXN, subscription=where, **txn)
        for size in (-1, 64 * ACK_SET_WORDS_MAX + 1, 2**31 - 1):  # each a number of so many bits
            assert await ack(client, first, 0, ack_set=[0b110], batch_size=size) == pb.NotAllowedError
        assert await ack(client, first, 0, ack_set=[0b110], batch_size=3) is None
        assert await ack(client, second, 0, ack_set=[0b100], batch_size=3) == pb.TransactionConflict
        assert await ack(client, second, 0, ack_set=[0b101], batch_size=3) is None
        for txn in (first, second):
            assert await end(client, txn) is None
        cursor = broker.topics.loaded[TOPIC].subscriptions["s"].cursor
        assert cursor.partly_acked == {(10, 0): 0b100}
        assert await ack(client, None, 0, ack_set=[0b011], batch_size=3) is None
        assert cursor.mark_delete == (10, 0)

    with_transactions(test)


def test_a_cumulative_acknowledgement_within_the_next_batch() -> None:
    """All before the batch is acknowledged already, and what is refused leaves nothing."""

    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        for number in range(2):
            await client.do(send(1, 10 * number, entry(b"x" * 60, batch=10), num_messages=10))
        await client.flow(100)
        assert await ack(client, None, 0, kind=1) is None
        cursor = broker.topics.loaded[TOPIC].subscriptions["s"].cursor
        assert cursor.mark_delete == (10, 0)
        txn, late = await join(client, await begin(client)), await join(client, await begin(client))
        for count in (2, 4):  # the same transaction says more
            left = (1 << 10) - (1 << count)
            assert await ack(client, txn, 1, kind=1, ack_set=[left], batch_size=10) is None
        assert await ack(client, late, 1, kind=1, ack_set=[0b1111111110], batch_size=10) == pb.TransactionConflict
        assert await ack(client, late, 0, kind=1) == pb.TransactionConflict
        assert not cursor.partly_acked
        assert await end(client, late) is None and not cursor.partly_acked
        assert await end(client, txn) is None
        assert cursor.partly_acked == {(10, 1): 0b1111110000} and cursor.mark_delete == (10, 0)
        following = await join(client, await begin(client))
        assert await ack(client, following, 1, kind=1, ack_set=[0b1111111000], batch_size=10) == pb.TransactionConflict
        assert await ack(client, following, 1, kind=1, ack_set=[0b1111000000], batch_size=10) is None
        assert await end(client, following, 1) is None and cursor.partly_acked == {(10, 1): 0b1111110000}
        last = await join(client, await begin(client))
        assert await ack(client, last, 1, kind=1, ack_set=[0b1100000000], batch_size=10) is None
        assert await end(client, last) is None and cursor.partly_acked == {(10, 1): 0b1100000000}
        broker.topics.settings = replace(broker.topics.settings, batch_index_acks=False)
        whole = await join(client, await begin(client))
        assert await ack(client, whole, 1, kind=1, ack_set=[0b1000000000], batch_size=10) is None  # passed over
        assert await end(client, whole) is None and cursor.partly_acked == {(10, 1): 0b1100000000}

    with_transactions(test)


def test_parts_that_are_refused_leave_no_cumulative_acknowledgement() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        for number in range(3):
            await client.do(send(1, 10 * number, entry(b"x" * 60, batch=10), num_messages=10))
        await client.flow(100)
        first, second = await join(client, await begin(client)), await join(client, await begin(client))
        assert await ack(client, first, 2, ack_set=[0b1111111110], batch_size=10) is None
        assert await ack(client, second, 2, kind=1, ack_set=[0b1111110000], batch_size=10) == pb.TransactionConflict
        assert await end(client, second) is None
        assert broker.topics.loaded[TOPIC].subscriptions["s"].cursor.backlog_entries == 3

    with_transactions(test)


def test_time_is_over() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        txn = await begin(client, ttl_ms=5000)
        await ask(client, K.ADD_PARTITION_TO_TXN, partitions=[TOPIC], **txn)
        await publish(client, 0, b"t0", txn)
        broker.clock.now += 5
        await broker.transactions.loaded[0].tick()
        assert await end(client, txn) == pb.InvalidTxnStatus
        assert await end(client, txn, 1) is None
        assert await publish(client, 1, b"t1", txn) == [K.SEND_ERROR]

    with_transactions(test)


def test_what_is_refused() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        nobody = {"txnid_most_bits": 0, "txnid_least_bits": 999}
        assert (await ask(client, K.TC_CLIENT_CONNECT_REQUEST, tc_id=99)).error == pb.TransactionCoordinatorNotFound
        assert (await ask(client, K.NEW_TXN, tc_id=99)).error == pb.TransactionCoordinatorNotFound
        assert await end(client, nobody) == pb.TransactionNotFound
        assert (await ask(client, K.ADD_PARTITION_TO_TXN, partitions=[TOPIC], **nobody)).error == pb.TransactionNotFound
        txn = await begin(client)
        assert (await ask(client, K.ADD_PARTITION_TO_TXN, partitions=["bad://x"], **txn)).error == pb.NotAllowedError
        volatile = "non-persistent://public/default/v"
        await client.producer(2, topic=volatile)
        assert await publish(client, 0, b"t0", txn, producer_id=2) == [K.SEND_ERROR]
        broker.owned = lambda topic: False
        assert (await ask(client, K.NEW_TXN, tc_id=0)).error == pb.TransactionCoordinatorNotFound
        broker.owned = lambda topic: True
        broker.listener.broker.transactions = None
        assert (await ask(client, K.NEW_TXN, tc_id=0)).error == pb.TransactionCoordinatorNotFound
        await client.producer(3, topic=OTHER)
        assert await publish(client, 0, b"t0", txn, producer_id=3) == [K.SEND_ERROR]

    with_transactions(test)


def test_nothing_comes_into_a_transaction_whose_end_is_forgotten_and_into_an_open_one_of_that_age_it_does() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, kind=SHARED)
        await client.flow(100)
        await publish(client, 0, b"p0")
        await publish(client, 1, b"p1")
        late = await join(client, await begin(client))  # it keeps the low watermark where it is
        ended = await join(client, await begin(client))
        assert await publish(client, 2, b"t0", ended) == [K.SEND_RECEIPT]
        assert await ack(client, ended, 0) is None
        assert await end(client, ended) is None
        forget(broker, ended, low=late["txnid_least_bits"])
        assert await publish(client, 3, b"t1", ended) == [K.SEND_ERROR]
        assert await ack(client, ended, 1) == pb.NotAllowedError
        assert payloads(client.got) == [b"p0", b"p1", b"t0"], "readers stand before nothing"
        await client.producer(2)
        assert await publish(client, 0, b"t2", late, producer_id=2) == [K.SEND_RECEIPT]
        assert await publish(client, 1, b"t3", late, producer_id=2) == [K.SEND_RECEIPT]
        assert await ack(client, late, 1) is None
        assert await ack(client, late, 2) is None
        assert await end(client, late) is None
        await client.news()
        assert payloads(client.got) == [b"p0", b"p1", b"t0", b"t2", b"t3"]

    with_transactions(test)


def forget(broker: TransactionalBroker, ended: dict[str, int], low: int) -> None:
    """So many later ones end that neither the topic nor its subscription knows of this one any more."""
    topic, coordinator = broker.topics.loaded[TOPIC], ended["txnid_most_bits"]
    ledger, first = topic.ledger.last_confirmed
    later = range(ended["txnid_least_bits"] + 1, ended["txnid_least_bits"] + 2 + ENDED_MAX)
    for number in later:
        topic.log.state.transactions.confirm(ledger, first, marker_run((coordinator, number), COMMIT, low))
        topic.subscriptions["s"].transactions.pending.take((coordinator, number), low)
    assert len(later) > pending_acks.ENDED_MAX


async def taken(*asked: Any) -> None:
    """Brokers of before asked nobody whether a topic takes part in a transaction."""


def test_what_was_published_without_being_registered_is_aborted_by_the_watermark() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        await client.flow(100)
        stray, later = await begin(client), await join(client, await begin(client))
        check, broker.transactions.check_part = broker.transactions.check_part, taken  # type: ignore[method-assign]
        await publish(client, 0, b"t0", stray)
        broker.transactions.check_part = check  # type: ignore[method-assign]
        await publish(client, 1, b"t1", later)
        assert await end(client, stray) is None  # nothing was registered: nobody is told
        assert await end(client, later) is None
        await client.news()
        assert payloads(client.got) == [b"t1"]

    with_transactions(test)


def strangers(own: dict[str, int], unregistered: dict[str, int]) -> list[dict[str, int]]:
    """Of transactions that nobody would end here: never begun, of no coordinator, without this topic."""
    never = {"txnid_most_bits": 0, "txnid_least_bits": (1 << 62) - 1}
    return [never, {**own, "txnid_most_bits": 99}, unregistered]


def test_what_is_in_no_transaction_of_the_client_is_refused_and_holds_nobodys_reads() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, kind=SHARED)
        await client.flow(100)
        own = await join(client, await begin(client))
        foreign = await join(client, await begin(client))
        broker.transactions.loaded[0].core.open[foreign["txnid_least_bits"]].owner = "ann"
        await broker.transactions.loaded[0]._store(broker.transactions.loaded[0].core.open[foreign["txnid_least_bits"]])
        refused = [*strangers(own, await begin(client)), foreign]
        assert await publish(client, 0, b"p0") == [K.SEND_RECEIPT]
        for number, txn in enumerate(refused, 1):
            assert await publish(client, number, b"tx", txn) == [K.SEND_ERROR], txn
            assert await ack(client, txn, 0) == pb.NotAllowedError, txn
        assert await publish(client, 8, b"p1") == [K.SEND_RECEIPT]
        await client.news()
        assert payloads(client.got) == [b"p0", b"p1"], "nobody waits for what was refused"
        assert await ack(client, own, 0) is None, "and nothing is held by it"

    with_transactions(test)


def test_a_consumer_that_goes_while_its_transaction_is_asked_for_makes_nobody_a_part() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, kind=SHARED)
        await client.flow(100)
        never = {"txnid_most_bits": 0, "txnid_least_bits": (1 << 62) - 1}
        assert await publish(client, 0, b"p0") == [K.SEND_RECEIPT]
        first = [pb.MessageIdData(ledgerId=10, entryId=0)]
        came = await client.do(
            frame(K.ACK, consumer_id=1, ack_type=0, message_id=first, request_id=70, **never)
            + frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=71)
        )
        assert [c.ackResponse.error for c, _ in came if c.type == K.ACK_RESPONSE] == [pb.ConsumerNotFound]
        await client.subscribe(1, kind=SHARED)
        assert await ack(client, never, 0) == pb.NotAllowedError

    with_transactions(test)


def test_what_waits_for_its_transaction_acknowledges_nothing_of_another_consumer_that_has_its_id_then() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, kind=SHARED)
        await client.subscribe(2, name="other", kind=SHARED)
        await client.flow(100)
        txn, go = await join(client, await begin(client)), asyncio.Event()
        assert await publish(client, 0, b"p0") == [K.SEND_RECEIPT]

        async def slow(*about: Any) -> None:
            await go.wait()

        broker.transactions.check_part = slow  # type: ignore[method-assign]
        ids = [pb.MessageIdData(ledgerId=10, entryId=0)]
        waits = frame(K.ACK, consumer_id=1, ack_type=0, message_id=ids, request_id=70, **txn)
        await client.do(waits * 2)
        client.raw(frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=71))
        await client.subscribe(1, name="other", kind=SHARED)
        go.set()
        await client.news()
        answers = [c.ackResponse.error for c, _ in client.got if c.type == K.ACK_RESPONSE]
        other = broker.topics.loaded[TOPIC].subscriptions["other"]
        assert answers == [pb.ConsumerNotFound] * 2
        assert other.transactional is None or not other.transactional.pending.held

    with_transactions(test)


def test_acks_whose_transaction_is_asked_for_are_bounded_and_each_transaction_is_asked_for_once() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, kind=SHARED)
        await client.flow(10)
        one, other = await join(client, await begin(client)), await join(client, await begin(client))
        for number in range(4):
            assert await publish(client, number, b"p%d" % number) == [K.SEND_RECEIPT]
        check, asked, now, go = broker.transactions.check_part, list[Any](), [0, 0], asyncio.Event()

        async def slow(txn: Any, *about: Any) -> None:
            asked.append(txn)
            now[0] += 1
            now[1] = max(now)
            await go.wait()
            await check(txn, *about)
            now[0] -= 1

        broker.transactions.check_part = slow  # type: ignore[method-assign]
        acks = [
            frame(K.ACK, consumer_id=1, ack_type=0, message_id=[pb.MessageIdData(ledgerId=10, entryId=entry)], **txn)
            for entry, txn in ((0, one), (1, other), (2, one), (3, other))
        ]
        client.raw(b"".join(acks * (UNKNOWN_ACKS_MAX // 4)))
        await client.news()
        assert not client.transport.reading and len(asked) == 1
        go.set()
        for _ in range(20):
            await client.news()
        assert client.transport.reading
        assert (len(asked), len(set(asked)), now) == (2, 2, [0, 1])
        for txn in (one, other):
            assert await end(client, txn) is None
        assert broker.topics.loaded[TOPIC].subscriptions["s"].cursor.mark_delete >= (10, 3)

    with_transactions(test)


def test_acknowledgements_whose_transaction_is_asked_for_are_bounded_in_bytes() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, kind=SHARED)
        txn, go = await join(client, await begin(client)), asyncio.Event()

        async def slow(*about: Any) -> None:
            await go.wait()

        broker.transactions.check_part = slow  # type: ignore[method-assign]
        id_of, large = pb.MessageIdData(ledgerId=10, entryId=0), "x" * (2 * UNKNOWN_BYTES_MAX // 5)
        properties = [pb.KeyLongValue(key=large, value=1)]
        one = frame(K.ACK, consumer_id=1, ack_type=0, message_id=[id_of], properties=properties, **txn)
        client.raw(one * 2)
        assert client.transport.reading
        many = [id_of] * (ACK_IDS_MAX + 1)
        more = frame(K.ACK, consumer_id=1, ack_type=0, message_id=many, properties=properties, request_id=70, **txn)
        ((answer, _),) = await client.do(more)
        assert answer.ackResponse.error == pb.NotAllowedError, "what is never taken waits for nothing"
        client.raw(one)
        assert not client.transport.reading
        go.set()
        await client.news()
        assert client.transport.reading and client.protocol.session.consuming.unknown_bytes == 0

    with_transactions(test)


def test_what_comes_behind_a_run_that_waits_keeps_its_order() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.producer(2)
        await client.subscribe(1)
        await client.flow(100)
        txn, never = await join(client, await begin(client)), {"txnid_most_bits": 0, "txnid_least_bits": 1 << 60}
        came = await client.do(
            send(1, 0, entry(b"p0", sequence=0))
            + send(1, 1, entry(b"t0", sequence=1), **txn)
            + send(2, 0, entry(b"q0", sequence=0))
            + send(1, 2, entry(b"tx", sequence=2), **never)
            + send(1, 3, entry(b"p1", sequence=3))
        )
        came += await client.news()
        answers = [
            (command.send_receipt.producer_id, command.send_receipt.sequence_id)
            if command.type == K.SEND_RECEIPT
            else command.send_error.sequence_id
            for command, _ in came
            if command.type in (K.SEND_RECEIPT, K.SEND_ERROR)
        ]
        assert sorted(answers, key=str) == sorted([(1, 0), (1, 1), (2, 0), 2, (1, 3)], key=str)
        assert await end(client, txn) is None
        await client.news()
        assert payloads(client.got) == [b"p0", b"t0", b"q0", b"p1"]
        assert not client.protocol.session.producing._waiting

    with_transactions(test)


def test_the_commands_between_brokers() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, kind=SHARED)
        await client.flow(100)
        txn = await join(client, await begin(client))
        await publish(client, 0, b"p0")
        await publish(client, 1, b"t0", txn)
        await client.news()
        assert await ack(client, txn, 0) is None
        answer = await ask(client, K.END_TXN_ON_PARTITION, topic=TOPIC, txn_action=0, **txn)
        assert not answer.HasField("error") and payloads(client.got) == [b"p0", b"t0"]
        where = pb.Subscription(topic=TOPIC, subscription="s")
        body = pb.BaseCommand(type=K.END_TXN_ON_SUBSCRIPTION)
        body.endTxnOnSubscription.subscription.CopyFrom(where)
        client.requests += 1
        body.endTxnOnSubscription.request_id = client.requests
        body.endTxnOnSubscription.txnid_most_bits, body.endTxnOnSubscription.txnid_least_bits = (
            txn["txnid_most_bits"],
            txn["txnid_least_bits"],
        )
        data = body.SerializeToString()
        came = await client.do((len(data) + 4).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data)
        assert not came[-1][0].endTxnOnSubscriptionResponse.HasField("error")
        assert broker.topics.loaded[TOPIC].subscriptions["s"].cursor.is_acked((10, 0))
        gone = await ask(client, K.END_TXN_ON_PARTITION, topic=OTHER, txn_action=0, **txn)
        assert gone.error == pb.TopicNotFound
        against = await ask(client, K.END_TXN_ON_PARTITION, topic=TOPIC, txn_action=1, **txn)
        assert against.error == pb.InvalidTxnStatus

    with_transactions(test)


def test_a_topic_with_an_open_transaction_is_not_terminated() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        txn = await begin(client)
        await ask(client, K.ADD_PARTITION_TO_TXN, partitions=[TOPIC], **txn)
        await publish(client, 0, b"t0", txn)
        with pytest.raises(Exception, match="open in it"):
            await broker.topics.terminate(TOPIC)
        assert await end(client, txn) is None
        assert await broker.topics.terminate(TOPIC) == (10, 1)
        late = await begin(client)
        await ask(client, K.ADD_PARTITION_TO_TXN, partitions=[TOPIC], **late)
        assert await end(client, late) is None  # nothing of it is in the topic

    with_transactions(test)


def named(broker: TransactionalBroker, topic: str) -> list[list[str]]:
    """What each end of a transaction in it says of other topics."""
    return [read_participants(run.parts[0]) for _, _, run in broker.ledger(topic).runs if is_marker(run)]


def test_a_commit_tells_other_regions_of_no_topic_that_had_no_part_in_it() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.producer(2, OTHER)
        both, late = await begin(client), await begin(client)
        for txn in (both, late):
            await ask(client, K.ADD_PARTITION_TO_TXN, partitions=[TOPIC, OTHER], **txn)
            await publish(client, 0, b"t0", txn)
        await publish(client, 0, b"u0", both, producer_id=2)
        assert await end(client, both) is None
        assert named(broker, TOPIC) == [[OTHER]] and named(broker, OTHER) == [[TOPIC]]
        await broker.topics.terminate(OTHER)
        assert await end(client, late) is None
        assert named(broker, TOPIC) == [[OTHER], [OTHER], []], "said at once, and taken back"
        assert await end(client, late) is None and len(named(broker, TOPIC)) == 3, (
            "a client that asks again changes nothing"
        )

    with_transactions(test)


def test_a_terminated_topic_that_has_forgotten_a_commit_had_a_part_in_it() -> None:
    """Its coordinator told this topic, and crashed before all were told: in other regions nothing is shown without this
    topic's part.
    """

    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.producer(2, OTHER)
        both = await begin(client)
        await ask(client, K.ADD_PARTITION_TO_TXN, partitions=[TOPIC, OTHER], **both)
        await publish(client, 0, b"t0", both)
        await publish(client, 0, b"u0", both, producer_id=2)
        txn = (both["txnid_most_bits"], both["txnid_least_bits"])
        assert await broker.transactions.end_here(OTHER, None, txn, commit=True, low=txn[1], others=[TOPIC])
        log, later = broker.topics.loaded[OTHER].log, []
        for number in range(txn[1] + 1, txn[1] + 1 + ENDED_MAX):
            log.publish(marker_run((txn[0], number), COMMIT, txn[1]), later.append, later.append)
        await client.news()
        assert len(named(broker, OTHER)) == 1 + ENDED_MAX
        await broker.topics.terminate(OTHER)
        assert await end(client, both) is None
        assert named(broker, TOPIC) == [[OTHER]], "it is not taken back"
        assert len(named(broker, OTHER)) == 1 + ENDED_MAX

    with_transactions(test)


@pytest.mark.parametrize(
    ("policies", "told"),
    [
        ({"replication": ["eu", "ap"]}, [f"ap|{OTHER}"]),
        ({"replication": ["eu"]}, []),
        ({"replication": []}, [OTHER]),
        ({"replication": ["eu", "ap", "us"], "replicationRoutes": {"eu": ["us"], "ap": ["eu"]}}, [f"us|{OTHER}"]),
        ({"replication": ["eu", "ap"], "replicationTopology": {"kind": "star", "center": "ap"}}, [OTHER]),
    ],
)
def test_a_commit_says_where_a_topic_goes_that_a_policy_of_this_region_keeps_from_others(
    policies: dict[str, Any], told: list[str]
) -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.producer(2, OTHER)
        await broker.topics.policies.change_topic(OTHER, lambda before: replace(before, policies=policies))
        await client.news()
        txn = await begin(client)
        await ask(client, K.ADD_PARTITION_TO_TXN, partitions=[TOPIC, OTHER], **txn)
        await publish(client, 0, b"t0", txn)
        assert await end(client, txn) is None
        assert named(broker, TOPIC) == [told]

    with_transactions(test)
