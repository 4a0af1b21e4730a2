"""One conformance suite over the real bookie, through its client, and the fake one of the ledgers' simulations."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import BookieUnavailable, HeliographError, LedgerFenced, NoSuchEntry, NoSuchLedger
from heliograph.wire.block import decode_block, encode_block
from heliograph.wire.run import Buffer, Run
from storage.ledger.bookies.bookie_port import END, BookiePort
from tests.storage.bookie.history import block, content
from tests.storage.bookie.serving.bookie_cluster import Cluster, Writer, scenario
from tests.storage.ledger.fake_bookies import FakeBookie, FakeClient

ANSWERED_S = 0.5
"""By then all that was sent is answered."""


class RealBookie:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def connect(self) -> BookiePort:
        return self._cluster.client()

    def doubt(self) -> None:
        """From now on it is in limbo."""
        self._cluster.bookie.limbo = "for a test"

    def crash(self) -> None:
        self._cluster.machine.kill()

    def start(self) -> None:
        self._cluster.start()


class FakedBookie:
    def __init__(self) -> None:
        self._bookie = FakeBookie("b0", random.Random(4))

    def connect(self) -> BookiePort:
        return FakeClient(self._bookie)

    def doubt(self) -> None:
        self._bookie.limbo = True

    def crash(self) -> None:
        self._bookie.crash()

    def start(self) -> None:
        self._bookie.start()


Case = Callable[[RealBookie | FakedBookie], Awaitable[None]]


def run_real(case: Case) -> None:
    scenario(lambda cluster: case(RealBookie(cluster)))


def run_fake(case: Case) -> None:
    with Simulation(5) as sim:

        async def main() -> None:
            await case(FakedBookie())

        sim.run(main())


def entries_of(blocks: Sequence[Buffer]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for one in blocks:
        _, first, run = decode_block(one)
        found.update({first + index: bytes(part) for index, part in enumerate(run.parts)})
    return found


def wanted(*entries: int) -> dict[int, bytes]:
    return {entry: content(1, entry) for entry in entries}


async def answered() -> None:
    await asyncio.sleep(ANSWERED_S)


async def error_of(waiting: Awaitable[object]) -> type[Exception] | None:
    try:
        await waiting
    except HeliographError as error:
        return type(error)
    return None


async def filled(client: BookiePort, *counts: int) -> Writer:
    """Ledger 1, with adds of so many entries each."""
    writer = Writer(client, 1)
    for count in counts:
        writer.add(count)
    await answered()
    assert writer.acks[-1] == writer.sent - 1 and not writer.lost
    return writer


# -- the cases ---------------------------------------------------------------------------------------------------------


async def adds_are_acknowledged_in_order(bookie: RealBookie | FakedBookie) -> None:
    client = bookie.connect()
    one, two = Writer(client, 1), Writer(client, 2)
    for count in (3, 1, 9, 2):
        one.add(count)
        two.add(1)
    assert client.backlog_bytes > 0 and not one.acks, "never from within the call"
    await answered()
    assert one.acks == sorted(one.acks) and one.acks[-1] == 14 and two.acks[-1] == 3
    assert client.backlog_bytes == 0 and not one.lost


async def what_is_there_is_read(bookie: RealBookie | FakedBookie) -> None:
    client = bookie.connect()
    await filled(client, 3, 1, 9, 2)
    assert entries_of(await client.read(1, 0, 0, 1 << 20)) == wanted(0, 1, 2), "whole blocks"
    assert entries_of(await client.read(1, 3, 3, 1 << 20)) == wanted(3)
    assert entries_of(await client.read(1, 2, 12, 1 << 20)) == wanted(*range(13))
    assert entries_of(await client.read(1, 0, END, 1 << 20)) == wanted(*range(15))
    assert entries_of(await client.read(1, 0, END, 1)) == wanted(0, 1, 2), "at least one block"
    await client.add_recovery(1, 20, 2, [block(1, 20, 2)], -1)
    assert entries_of(await client.read(1, 13, END, 1 << 20)) == wanted(13, 14), "up to a hole"


async def absent_entries_and_absent_ledgers_are_told_apart(bookie: RealBookie | FakedBookie) -> None:
    client = bookie.connect()
    await filled(client, 3)
    assert await error_of(client.read(1, 3, 3, 1000)) is NoSuchEntry
    assert await error_of(client.read(1, 2, 1, 1000)) is NoSuchEntry, "none is asked for"
    assert await error_of(client.read(9, 0, 0, 1000)) is NoSuchLedger
    assert await error_of(client.read_lac(9)) is NoSuchLedger
    assert await error_of(client.held(9, 0, 5)) is NoSuchLedger
    client.write_lac(9, 5)
    assert await error_of(client.read_lac(9)) is NoSuchLedger, "it makes no ledger"
    assert await client.fence(9) == (-1, -1)
    assert await error_of(client.read(9, 0, 0, 1000)) is NoSuchEntry, "of it there is a fence"
    assert await client.read_lac(9) == -1 and await client.held(9, 0, 5) == []


async def what_is_added_again_takes_the_place_of_what_was_there(bookie: RealBookie | FakedBookie) -> None:
    client = bookie.connect()
    writer = await filled(client, 4, 4)
    client.add(1, 2, 4, [block(1, 2, 4)], 1)
    await answered()
    assert writer.acks[-1] == 5 and not writer.lost and client.backlog_bytes == 0
    assert entries_of(await client.read(1, 0, END, 1 << 20)) == wanted(*range(8))
    other = [b"other"]
    await client.add_recovery(1, 3, 1, [b"".join(encode_block(Run(other, [5], time_ms=5), 1, 3))], 2)
    assert entries_of(await client.read(1, 0, END, 1 << 20)) == wanted(*range(8)) | {3: b"other"}
    assert [decode_block(one)[1] for one in await client.read(1, 2, END, 1 << 20)] == [2, 3, 4, 6], "cut around it"


async def a_fence_ends_writers_and_recovery_goes_on(bookie: RealBookie | FakedBookie) -> None:
    old, new = bookie.connect(), bookie.connect()
    writer = await filled(old, 4)
    assert await new.fence(1) == (-1, 3) == await new.fence(1)
    writer.add(1)
    writer.add(1)
    await answered()
    assert [type(error) for error in writer.lost] == [LedgerFenced] and writer.acks == [3], "it is told once"
    assert old.backlog_bytes == 0
    writer.add(1)
    assert old.backlog_bytes == 0, "nothing is sent without a writer"
    again = Writer(old, 1)
    again.add(1)
    await answered()
    assert [type(error) for error in again.lost] == [LedgerFenced] and not again.acks
    await new.add_recovery(1, 4, 1, [block(1, 4, 1)], 3)
    assert await new.fence(1) == (3, 4) and await error_of(new.read(1, 5, 5, 1000)) is NoSuchEntry
    late = Writer(new, 7)
    await new.fence(7)
    late.add(1)
    await answered()
    assert [type(error) for error in late.lost] == [LedgerFenced], "a fence comes before the first entry, too"


async def writers_come_one_behind_another(bookie: RealBookie | FakedBookie) -> None:
    client = bookie.connect()
    first = await filled(client, 2)
    second = Writer(client, 1)
    second.sent = 2
    second.add(3)
    await answered()
    assert second.acks == [4] and first.acks == [1] and not first.lost, "the former is forgotten"
    second.add(1)
    client.close_writer(1)
    assert client.backlog_bytes == 0
    await answered()
    assert second.acks == [4] and not second.lost and client.backlog_bytes == 0


async def the_lac_goes_with_adds_and_alone(bookie: RealBookie | FakedBookie) -> None:
    client, reader = bookie.connect(), bookie.connect()
    await filled(client, 3, 1)
    assert await reader.read_lac(1) == 2
    client.write_lac(1, 3)
    client.write_lac(1, 1)
    await answered()
    assert await reader.read_lac(1) == 3 and await reader.fence(1) == (3, 3), "it never falls"


async def a_reader_waits_for_the_lac(bookie: RealBookie | FakedBookie) -> None:
    client, reader = bookie.connect(), bookie.connect()
    loop = asyncio.get_running_loop()
    early = asyncio.ensure_future(reader.wait_lac(1, -1, 2.0))
    await asyncio.sleep(0.1)
    began = loop.time()
    await filled(client, 3, 2)
    assert early.done() and await early == 2
    assert await reader.wait_lac(1, 1, 2.0) == 2, "it is known already"
    began = loop.time()
    assert await reader.wait_lac(1, 2, 1.0) == 2 and loop.time() - began > 0.9, "its time is over"
    poll = asyncio.ensure_future(reader.wait_lac(1, 2, 2.4))
    await answered()
    assert not poll.done()
    await client.fence(1)
    await asyncio.sleep(0.2)
    assert poll.done() and await poll == 2, "nothing more comes"
    began = loop.time()
    assert await reader.wait_lac(1, 2, 2.4) == 2 and loop.time() - began < 0.2
    assert await error_of(reader.wait_lac(7, -1, 0.5)) is NoSuchLedger


async def what_is_held_is_told_in_ranges(bookie: RealBookie | FakedBookie) -> None:
    client = bookie.connect()
    await filled(client, 3, 3, 3)
    await client.add_recovery(1, 40, 2, [block(1, 40, 2)], -1)
    assert await client.held(1, 0, 100) == [(0, 8), (40, 41)]
    assert await client.held(1, 4, 5) == [(4, 5)] and await client.held(1, 30, 35) == []


async def what_was_deleted_never_comes_again(bookie: RealBookie | FakedBookie) -> None:
    client = bookie.connect()
    writer = await filled(client, 3)
    await client.delete(1)
    await client.delete(1)
    await client.delete(8)
    for ask in (client.read(1, 0, 0, 1000), client.read_lac(1), client.held(1, 0, 5), client.wait_lac(1, -1, 2.0)):
        assert await error_of(ask) is NoSuchLedger
    assert await error_of(client.add_recovery(1, 0, 1, [block(1, 0, 1)], -1)) is NoSuchLedger
    writer.add(1)
    await answered()
    assert [type(error) for error in writer.lost] == [NoSuchLedger] and client.backlog_bytes == 0
    assert await client.fence(1) == (-1, -1)
    assert await error_of(client.read(1, 0, 0, 1000)) is NoSuchLedger, "also of a fence nothing is left"


async def in_limbo_it_says_nothing_of_what_is_absent(bookie: RealBookie | FakedBookie) -> None:
    client = bookie.connect()
    writer = await filled(client, 3, 1)
    bookie.doubt()
    assert entries_of(await client.read(1, 0, END, 1 << 20)) == wanted(*range(4)), "what is there is read"
    assert await client.read_lac(1) == 2
    for ask in (
        client.read(1, 4, 4, 1000),
        client.read(9, 0, 0, 1000),
        client.read_lac(9),
        client.held(1, 0, 5),
        client.fence(1),
        client.delete(1),
        client.add_recovery(1, 4, 1, [block(1, 4, 1)], 3),
    ):
        assert await error_of(ask) is BookieUnavailable
    writer.add(1)
    await answered()
    assert [type(error) for error in writer.lost] == [BookieUnavailable]


async def a_lost_connection_is_told_once(bookie: RealBookie | FakedBookie) -> None:
    client = bookie.connect()
    writer = await filled(client, 2)
    reading = asyncio.ensure_future(error_of(client.read(1, 0, 0, 10)))
    await asyncio.sleep(0)
    bookie.crash()
    writer.add(2)
    await answered()
    assert [type(error) for error in writer.lost] == [BookieUnavailable] and await reading is BookieUnavailable
    assert client.backlog_bytes == 0 and await error_of(client.read_lac(1)) is BookieUnavailable
    later = Writer(client, 1)
    assert later.lost == [], "never from within the call"
    await answered()
    assert [type(error) for error in later.lost] == [BookieUnavailable]
    bookie.start()
    await asyncio.sleep(3)
    again = Writer(client, 1)
    again.sent = 2
    again.add(1)
    await answered()
    assert again.acks == [2] and len(writer.lost) == 1
    assert entries_of(await client.read(1, 0, 1, 1 << 20)) == wanted(0, 1), "what was acknowledged outlives it"


async def a_closed_client_stays_closed(bookie: RealBookie | FakedBookie) -> None:
    client, other = bookie.connect(), bookie.connect()
    writer = await filled(client, 2)
    reading = asyncio.ensure_future(error_of(client.read(1, 0, 0, 10)))
    await asyncio.sleep(0)
    client.close()
    await answered()
    assert [type(error) for error in writer.lost] == [BookieUnavailable] and await reading is BookieUnavailable
    assert await error_of(client.read_lac(1)) is BookieUnavailable
    later = Writer(client, 1)
    await answered()
    assert [type(error) for error in later.lost] == [BookieUnavailable]
    assert entries_of(await other.read(1, 0, 1, 1 << 20)) == wanted(0, 1)


CASES: list[Case] = [
    adds_are_acknowledged_in_order,
    what_is_there_is_read,
    absent_entries_and_absent_ledgers_are_told_apart,
    what_is_added_again_takes_the_place_of_what_was_there,
    a_fence_ends_writers_and_recovery_goes_on,
    writers_come_one_behind_another,
    the_lac_goes_with_adds_and_alone,
    a_reader_waits_for_the_lac,
    what_is_held_is_told_in_ranges,
    what_was_deleted_never_comes_again,
    in_limbo_it_says_nothing_of_what_is_absent,
    a_lost_connection_is_told_once,
    a_closed_client_stays_closed,
]


@pytest.mark.parametrize("run", [run_real, run_fake])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_bookie(case: Case, run: Callable[[Case], None]) -> None:
    run(case)
