"""What a bookie acknowledges after it has refused a ledger for want of space."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.disk import UNLIMITED_BYTES
from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import PeerError
from heliograph.wire.bookie_frames import Kind, encode
from tests.storage.bookie.boxes import Box, scenario
from tests.storage.bookie.history import add, send
from tests.storage.bookie.serving.bookie_cluster import Cluster, Writer
from tests.storage.bookie.serving.bookie_cluster import scenario as with_cluster

FILLER, LEDGER = 1, 9


def make_full(box: Box | Cluster) -> None:
    platter = box.journal if isinstance(box, Box) else box.machine.platter("journal")
    platter.capacity_bytes = platter.used_bytes()  # no room for another segment


async def refused(box: Box) -> int:
    """Sends until the bookie says that the ledger is lost; the last entry waits for a record. Returns how many went."""
    make_full(box)
    sent = 0
    while LEDGER not in box.peer.losses:
        box.bookie.commit()
        send(box.bookie, box.peer, add(LEDGER, sent, 10))
        send(box.bookie, box.peer, add(LEDGER, sent + 10, 1), commit=False)
        sent += 11
        await asyncio.sleep(0.02)
        assert sent < 1000, "never refused: the case is none"
    return sent


async def room_again(box: Box) -> None:
    box.journal.capacity_bytes = UNLIMITED_BYTES
    for _ in range(20):
        box.bookie.tick()
        box.bookie.commit()
        await asyncio.sleep(0.05)


async def filled(box: Box) -> None:
    for first in range(0, 20, 10):
        send(box.bookie, box.peer, add(FILLER, first, 10))
        await asyncio.sleep(0.02)


def test_no_acknowledgement_covers_what_was_refused() -> None:
    """An acknowledgement through an entry says that the entry and all before it are durable.

    A record that found no room is refused, an entry of the same ledger that waits for the next record is stored once
    there is room, and its acknowledgement, being cumulative, would speak for the refused ones too.
    """
    with Simulation(2) as sim:

        async def main() -> None:
            box = Box(sim)
            await filled(box)
            sent = await refused(box)
            await room_again(box)
            through = box.peer.acks.get(LEDGER, -1)
            box.restart()  # the power goes
            there = await box.entries(LEDGER, 0, sent) if through >= 0 else {}
            missing = [entry for entry in range(through + 1) if entry not in there]
            assert not missing, f"acknowledged through {through}, and of that {missing} are gone"

        sim.run(main(), limit_s=60)


def test_the_next_writer_is_told_nothing_of_the_one_before_it() -> None:
    """It comes while an entry of the refused one waits for its record, and sends from the first that is missing."""

    async def body(box: Box) -> None:
        await filled(box)
        last = await refused(box) - 1
        acked = box.peer.acks.get(LEDGER, -1)
        heard: list[tuple[int, int]] = []
        box.peer.on_acked = lambda ledger, _writer, through: heard.append((ledger, through))
        await room_again(box)
        assert heard == [], f"the entry {last} was stored behind what was refused"
        send(box.bookie, box.peer, add(LEDGER, acked + 1, 1, writer=2))
        await asyncio.sleep(0.1)
        assert heard == [(LEDGER, acked + 1)]
        send(box.bookie, box.peer, add(LEDGER, acked + 2, 1, writer=1), add(LEDGER, acked + 2, 2, writer=2))
        await asyncio.sleep(0.1)
        assert heard[1:] == [(LEDGER, acked + 3)], "of the writer that was refused nothing is taken any more"
        box.restart()
        assert set(await box.entries(LEDGER, acked + 1, acked + 3)) >= {acked + 1, acked + 2, acked + 3}

    scenario(body)


def test_the_record_of_an_earlier_writer_that_fails_is_not_held_against_a_later_one() -> None:
    async def body(box: Box) -> None:
        await filled(box)
        make_full(box)
        heard: list[int] = []
        box.peer.on_acked = lambda _ledger, _writer, through: heard.append(through)
        writer = 0
        while LEDGER not in box.peer.losses:
            box.bookie.commit()
            writer += 1
            send(box.bookie, box.peer, add(LEDGER, 20 * writer, 10, writer=writer))
            send(box.bookie, box.peer, add(LEDGER, 20 * writer + 10, 1, writer=writer + 1), commit=False)
            await asyncio.sleep(0.02)
            assert writer < 100, "never refused: the case is none"
        assert box.peer.refused == {LEDGER: writer}
        heard.clear()
        await room_again(box)
        assert heard == [20 * writer + 10]
        box.restart()
        assert 20 * writer + 10 in await box.entries(LEDGER, 20 * writer + 10, 20 * writer + 10)

    scenario(body)


def test_what_a_later_writer_was_refused_stays_refused_when_the_record_of_an_earlier_one_fails() -> None:
    async def body(box: Box) -> None:
        await filled(box)
        box.journal.fail_syncs = True
        send(box.bookie, box.peer, add(LEDGER, 0, 10, writer=1))
        box.bookie.dirs[0].full = "full"
        send(box.bookie, box.peer, add(LEDGER, 0, 10, writer=2))
        assert box.peer.refused == {LEDGER: 2}, "the record has failed before: the case is none"
        await asyncio.sleep(0.3)
        assert box.bookie.journals[0].failure and box.peer.refused == {LEDGER: 2}

    scenario(body)


def test_a_client_takes_no_ack_and_no_loss_of_its_earlier_writer() -> None:
    """A broker that gives a writer up and opens another on the same connection, while answers to the first are on their
    way.
    """

    async def body(cluster: Cluster) -> None:
        client = cluster.client()
        first = Writer(client, LEDGER)
        first.add(3)
        await asyncio.sleep(0.2)
        assert first.acks == [2]
        first.add(3)
        second = Writer(client, LEDGER)  # the ack of 3 to 5 is still to come
        second.sent = 3
        await asyncio.sleep(0.2)
        assert (first.acks, first.lost, second.acks, client.backlog_bytes) == ([2], [], [], 0)
        second.add(1)
        await asyncio.sleep(0.2)
        assert second.acks == [3]

        await asyncio.sleep(0.2)
        cluster.bookie.dirs[0].full = "full"
        second.add(1)
        third = Writer(client, LEDGER)  # the LOST of the second is still to come
        third.sent = 4
        await asyncio.sleep(0.2)
        cluster.bookie.dirs[0].full = ""
        third.add(2)
        await asyncio.sleep(0.2)
        assert (second.lost, third.lost, third.acks) == ([], [], [5])
        client.close()

    with_cluster(body)


@pytest.mark.parametrize("kind", [3, 64])
def test_who_knows_no_writers_numbers_is_refused(kind: int) -> None:
    """Kind 3 was OPEN_WRITER, kind 64 acks without a number: each side ends the connection, and reads neither as
    anything else.
    """
    frame = encode(Kind.ADD, ledger=LEDGER)
    frame = frame[:5] + bytes([kind]) + frame[6:]

    async def body(box: Box) -> None:
        with pytest.raises(PeerError, match=f"kind {kind}"):
            send(box.bookie, box.peer, frame)

    async def at_the_client(cluster: Cluster) -> None:
        with pytest.raises(PeerError, match=f"kind {kind}"):
            cluster.client().on_frames(memoryview(frame), [len(frame)])

    scenario(body)
    with_cluster(at_the_client)


def test_ten_thousand_writers_of_one_ledger_are_each_told_of_their_own() -> None:
    async def body(box: Box) -> None:
        heard: list[int] = []
        box.peer.on_acked = lambda _ledger, _writer, through: heard.append(through)
        for writer in range(1, 10_001):
            box.bookie.dirs[0].full = "full" if writer % 2 else ""
            send(box.bookie, box.peer, add(LEDGER, writer, 1, writer=writer), commit=not writer % 100)
            if not writer % 100:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert len(box.peer.refused) == 1, "the last one that was refused stands for all before it"
        assert heard[-1:] == [10_000] and all(through % 2 == 0 for through in heard)

    scenario(body)
