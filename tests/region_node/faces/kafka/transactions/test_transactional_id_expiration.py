"""Transactional ids as time goes by: what is over time ends without its producer, and an id that nobody uses is
forgotten; whoever coordinates it then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from heliograph.kv.metadata_store import pages_under
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.groups.committed_offsets import Row
from region_node.faces.kafka.transactions.kafka_transactions import IDS, TXN_OFFSETS, KafkaTransactions
from region_node.faces.kafka.transactions.transactional_id_expiration import IDLE, owner_key, producer_key
from region_node.transactions.coordinators.transaction_service import Transactions
from tests.region_node.faces.kafka.harness import Face
from tests.region_node.faces.kafka.transactions.harness import anew, with_transactions

DAY_S, HOUR_S = 86_400, 3_600
TIMEOUT_MS = 60_000


async def left(face: Face, prefix: str) -> list[str]:
    return [key.removeprefix(prefix) async for rows in pages_under(face.meta, prefix) for key, _, _ in rows]


async def refused(work: Coroutine[Any, Any, Any]) -> Code:
    with pytest.raises(Refused) as caught:
        await work
    return caught.value.code


def test_an_id_that_nobody_uses_is_forgotten_and_others_are_not() -> None:
    async def run(face: Face, service: Transactions, before: KafkaTransactions) -> None:
        idle = await before.begin_producer("idle/one", TIMEOUT_MS, -1, -1)
        used = await before.begin_producer("used", TIMEOUT_MS, -1, -1)
        opened = await before.begin_producer("open", 100 * DAY_S * 1000, -1, -1)
        await before.add_offsets("open", *opened)
        face.clock.now += HOUR_S
        await before.recover()
        assert sorted(await left(face, IDLE)) == ["idle%2Fone", "open", "used"]
        after = anew(face, service)  # another broker goes on: what was seen is stored
        face.clock.now += 7 * DAY_S - HOUR_S
        used = await after.begin_producer("used", TIMEOUT_MS, *used)
        await after.recover()
        assert len(await left(face, IDS)) == 3, "a minute less than the seven days"
        face.clock.now += HOUR_S
        await after.recover()
        assert sorted(await left(face, IDS)) == sorted(await left(face, IDLE)) == ["open", "used"]
        assert (
            await face.meta.get(producer_key(idle[0])) is None
            and await face.meta.get(producer_key(used[0])) is not None
        )
        assert await refused(after.add_offsets("idle/one", *idle)) == Code.INVALID_PRODUCER_ID_MAPPING
        assert (await after.begin_producer("idle/one", TIMEOUT_MS, -1, -1))[0] != idle[0]
        await after.end("open", *opened, commit=True)
        await after.add_offsets("used", *used)

    with_transactions(run, transaction_timeout_max_ms=200 * DAY_S * 1000)


def test_an_id_that_is_used_while_it_is_looked_at_stays() -> None:
    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        given = await transactions.begin_producer("id", TIMEOUT_MS, -1, -1)
        face.clock.now += HOUR_S
        await transactions.recover()
        face.clock.now += 8 * DAY_S
        plain = face.meta.txn
        raised: list[tuple[int, int]] = []

        async def late(ops: Any) -> int:
            if not raised:
                raised.append(given)
                raised.append(await transactions.begin_producer("id", TIMEOUT_MS, *given))
            return await plain(ops)

        face.meta.txn = late  # type: ignore[method-assign]
        await transactions.recover()
        assert raised[1] == (given[0], given[1] + 1)
        await transactions.add_offsets("id", *raised[1])

    with_transactions(run)


def test_without_a_limit_none_is_forgotten_and_bad_marks_are_made_anew() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await transactions.begin_producer("id", TIMEOUT_MS, -1, -1)
        await face.meta.put(IDLE + "id", b"no such bytes")
        face.clock.now += 100 * DAY_S
        await transactions.recover()
        assert await left(face, IDS) == ["id"]
        assert await transactions._idle.look(lambda _: True, transactions._idle_producer) == 0
        assert await transactions._idle.look(lambda _: False, transactions._idle_producer) == 0
        assert (await face.meta.get(IDLE + "id") or (b"", 0))[0] != b"no such bytes"

    with_transactions(run, transactional_id_expiration_s=-1)


@pytest.mark.parametrize("other", [False, True])
def test_what_is_over_time_ends_without_its_producer(other: bool) -> None:
    """Else the partitions of its group would stand for as long as that does not come again. other: the broker that it
    began at has died.
    """

    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        producer = await transactions.begin_producer("id", TIMEOUT_MS, -1, -1)
        await transactions.add_offsets("id", *producer)
        await transactions.hold_offsets("id", *producer, "g", {("t", 0): Row(7, -1, "", 0)})
        assert await transactions.unstable("g") == {("t", 0)}
        await transactions.recover()
        assert await transactions.unstable("g") == {("t", 0)}, "it is open"
        if other:
            transactions = anew(face, service)
            await transactions.recover()
        face.clock.now += TIMEOUT_MS / 1000 + 1
        await (await service.coordinator(service.coordinator_of("id"))).tick()
        await transactions.recover()
        assert await transactions.unstable("g") == set() and not await left(face, "/kafka/offsets/")
        assert await refused(transactions.end("id", *producer, commit=True)) == Code.PRODUCER_FENCED, "and not success"
        assert await refused(transactions.add_offsets("id", *producer)) == Code.PRODUCER_FENCED
        again = await transactions.begin_producer("id", TIMEOUT_MS, -1, -1)
        await transactions.add_offsets("id", *again)
        await transactions.hold_offsets("id", *again, "g", {("t", 0): Row(9, -1, "", 0)})
        await transactions.end("id", *again, commit=True)
        assert await transactions.unstable("g") == set() and len(await left(face, "/kafka/offsets/")) == 1
        await transactions.recover()
        assert not transactions._named.by_txn and not transactions._unfinished

    with_transactions(run)


@pytest.mark.parametrize("fenced", [True, False])
def test_offsets_that_are_written_once_their_transaction_has_ended_are_refused(fenced: bool) -> None:
    """fenced: another producer has begun meanwhile; else the same one has ended it."""

    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        producer = await transactions.begin_producer("id", TIMEOUT_MS, -1, -1)
        await transactions.add_offsets("id", *producer)
        txn, put = face.meta.txn, face.meta.put
        read, ended = asyncio.Event(), asyncio.Event()

        async def held(key: str) -> None:
            if key.startswith(TXN_OFFSETS) and not read.is_set():
                read.set()
                await ended.wait()

        async def late_put(key: str, *rest: Any, **named: Any) -> int:
            await held(key)
            return await put(key, *rest, **named)

        async def late_txn(ops: Any) -> int:
            await held(ops[-1].key)
            return await txn(ops)

        face.meta.put, face.meta.txn = late_put, late_txn  # type: ignore[method-assign]
        late = asyncio.create_task(transactions.hold_offsets("id", *producer, "g", {("t", 0): Row(7, -1, "", 0)}))
        await read.wait()
        if fenced:
            again = await transactions.begin_producer("id", TIMEOUT_MS, -1, -1)
        else:
            await transactions.end("id", *producer, commit=False)
            again = producer
        ended.set()
        await asyncio.wait([late])
        await transactions.add_offsets("id", *again)
        await transactions.end("id", *again, commit=True)
        assert await transactions.unstable("g") == set()
        assert not await left(face, "/kafka/offsets/") and not await left(face, TXN_OFFSETS)
        assert isinstance(late.exception(), Refused)

    with_transactions(run)


def test_offsets_of_ended_transactions_go_where_they_were_left() -> None:
    """As earlier versions may have left them, of ids that are used or forgotten."""

    async def run(face: Face, service: Transactions, before: KafkaTransactions) -> None:
        given = await before.begin_producer("used", TIMEOUT_MS, -1, -1)
        await before.begin_producer("idle", TIMEOUT_MS, -1, -1)
        opened = await before.begin_producer("open", 100 * DAY_S * 1000, -1, -1)
        await before.add_offsets("open", *opened)
        await before.hold_offsets("open", *opened, "g", {("t", 0): Row(7, -1, "", 0)})
        blob = (await face.meta.get(f"{TXN_OFFSETS}open/g/t") or (b"", 0))[0]
        for key in ("used/g/u", "gone/g/v"):
            await face.meta.put(TXN_OFFSETS + key, blob)
        after = anew(face, service)
        for each in ("used", "gone"):
            await service.coordinator(service.coordinator_of(each))
        await after.recover()
        assert await left(face, TXN_OFFSETS) == ["open/g/t"]
        await face.meta.put(f"{TXN_OFFSETS}idle/g/u", blob)
        for days in (1, 8):
            face.clock.now += days * DAY_S
            given = await after.begin_producer("used", TIMEOUT_MS, *given)
            await after.recover()
        assert sorted(await left(face, IDS)) == ["open", "used"] and await left(face, TXN_OFFSETS) == ["open/g/t"]

    with_transactions(run, transaction_timeout_max_ms=200 * DAY_S * 1000)


def test_a_broker_coordinates_so_many_ids_and_those_go_on() -> None:
    async def run(_: Face, __: Transactions, transactions: KafkaTransactions) -> None:
        for name in ("a", "b", "a"):
            producer = await transactions.begin_producer(name, 60_000, -1, -1)
            await transactions.add_offsets(name, *producer)
        with pytest.raises(Refused, match="transactional_ids_max") as refused:
            await transactions.begin_producer("c", 60_000, -1, -1)
        assert refused.value.code == Code.POLICY_VIOLATION
        transactions._ids = 0  # as another broker that has just taken the coordinators over
        transactions._looked_at = {}
        await transactions.recover()
        assert transactions._ids == 2

    with_transactions(run, transactional_ids_max=2)


def test_a_new_id_takes_the_place_of_the_one_that_was_used_longest_ago() -> None:
    """Flink takes another id for each checkpoint of each subtask, and comes back to none."""

    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        given = {}
        for name in ("a", "b", "c", "a", "d", "e"):
            given[name] = await transactions.begin_producer(name, TIMEOUT_MS, -1, -1)
            await transactions.add_offsets(name, *given[name])
            if name != "c":
                await transactions.end(name, *given[name], commit=True)
        assert sorted(await left(face, IDS)) == ["c", "d", "e"], "c is in a transaction"
        assert await refused(transactions.add_offsets("a", *given["a"])) == Code.INVALID_PRODUCER_ID_MAPPING

    with_transactions(run, transactional_ids_max=3)


def test_room_is_made_where_a_role_has_most_ids() -> None:
    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        for name, role in (("a", "ann"), ("b", "bob"), ("c", "bob"), ("d", "bob"), ("e", "eve"), ("f", "ann")):
            given = await transactions.begin_producer(name, TIMEOUT_MS, -1, -1)
            await face.meta.put(owner_key(given[0]), role.encode())
        assert sorted(await left(face, IDS)) == ["a", "d", "e", "f"]

    with_transactions(run, transactional_ids_max=4)


def test_ids_that_another_broker_has_by_now_fill_no_place_here() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        assert [service.coordinator_of(name) for name in "abde"] == [1, 1, 0, 0]
        for name in "ade":
            await transactions.begin_producer(name, TIMEOUT_MS, -1, -1)
        await service.loaded.pop(0).close()
        await transactions.begin_producer("b", TIMEOUT_MS, -1, -1)
        assert sorted(await left(face, IDS)) == ["a", "b", "d", "e"]

    with_transactions(run, transactional_ids_max=3)


def test_nobody_looks_for_room_again_at_once_where_there_was_none() -> None:
    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        producer = await transactions.begin_producer("a", TIMEOUT_MS, -1, -1)
        await transactions.add_offsets("a", *producer)
        assert await refused(transactions.begin_producer("b", TIMEOUT_MS, -1, -1)) == Code.POLICY_VIOLATION
        await transactions.end("a", *producer, commit=True)
        assert await refused(transactions.begin_producer("b", TIMEOUT_MS, -1, -1)) == Code.POLICY_VIOLATION
        face.clock.now += 11
        await transactions.begin_producer("b", TIMEOUT_MS, -1, -1)
        assert await left(face, IDS) == ["b"]

    with_transactions(run, transactional_ids_max=1)
