"""What a bookie says that it holds of a ledger: from memory and from entry logs, in pages, and of one that lost a
range.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import BookieUnavailable, NoSuchLedger, PeerError
from heliograph.wire.bookie_frames import HEAD, RANGE, Kind, decode_ranges, encode, encode_ranges
from storage.bookie.entry_log import entry_log
from storage.bookie.serving.bookie import Bookie
from storage.ledger.bookies.bookie_client import BookieClient
from tests.storage.bookie.boxes import Box
from tests.storage.bookie.history import SMALL, add, send
from tests.storage.bookie.serving.bookie_cluster import Cluster, Writer, scenario


def test_torn_or_disordered_ranges_are_refused() -> None:
    assert decode_ranges(memoryview(encode_ranges([(0, 3), (5, 5)]))) == [(0, 3), (5, 5)]
    for bad in (
        b"\0" * 15,
        encode_ranges([(4, 3)]),
        encode_ranges([(0, 3), (4, 5)]),
        encode_ranges([(5, 6), (0, 1)]),
        encode_ranges([(-1, 1)]),
    ):
        with pytest.raises(PeerError):
            decode_ranges(memoryview(bad))


async def held(box: Box, ledger: int, first: int, last: int) -> list[tuple[int, int]]:
    box.requests += 1
    send(
        box.bookie,
        box.peer,
        encode(Kind.READ_LAC, body_bytes=RANGE.size, ledger=ledger, request=box.requests) + RANGE.pack(first, last),
    )
    request = box.requests
    while request not in box.peer.answers:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    _, behind, _, body = box.peer.answers[request]
    found = decode_ranges(memoryview(body))
    return found if behind > last else found + await held(box, ledger, behind, last)


@pytest.mark.parametrize("seed", range(8))
def test_it_is_what_can_be_read_however_it_was_stored(seed: int) -> None:
    settings = replace(SMALL, held_looks_max=random.Random(seed).choice((1, 3, 500)))
    with Simulation(seed) as sim:

        async def main() -> None:
            box, rng = Box(sim, settings), random.Random(seed)
            there: set[int] = set()
            for turn in range(60):
                first, count = rng.randrange(300), rng.randrange(1, 9)
                send(box.bookie, box.peer, add(7, first, count, recovery=5000 + turn), add(8, turn * 3, 2, lac=turn))
                there |= set(range(first, first + count))
                if rng.random() < 0.1:
                    await box.flushed()
                elif rng.random() < 0.04:
                    box.restart()
                    there = {
                        entry for entry in range(320) if (await box.ask(Kind.READ, 7, first=entry, last=entry))[0] == 0
                    }
            for first, last in ((0, 400), (17, 17), (50, 120), (399, 500)):
                ranges = await held(box, 7, first, last)
                assert {n for a, b in ranges for n in range(a, b + 1)} == {n for n in there if first <= n <= last}

        sim.run(main())


def test_over_a_connection_and_from_bookies_that_cannot_say(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(cluster: Cluster) -> None:
        client = cluster.client()
        writer = Writer(client, 1)
        for _ in range(9):
            writer.add(3)
        await client.add_recovery(1, 40, 2, [bytes(add(1, 40, 2)[HEAD.size :])], -1)
        assert await client.held(1, 0, 100) == [(0, 26), (40, 41)]
        assert await client.held(1, 5, 7) == [(5, 7)] and await client.held(1, 30, 35) == []
        with pytest.raises(NoSuchLedger):
            await client.held(2, 0, 5)
        cluster.bookie.limbo = "for a test"
        with pytest.raises(BookieUnavailable, match="limbo"):
            await client.held(1, 0, 5)
        cluster.bookie.limbo = ""
        with monkeypatch.context() as patch:  # what the version before answers, which does not look at the body
            patch.setattr(
                Bookie,
                "_tell_held",
                lambda self, home, ledger, _body, request, peer: self._tell_lac(home, ledger, request, peer),
            )
            assert await client.held(1, 0, 5) is None
        assert await client.held(1, 0, 5) == [(0, 5)] and not cluster.bad, "on the same connection"
        await _bad_shapes(cluster, client)

    scenario(body, replace(SMALL, held_looks_max=2))


async def _bad_shapes(cluster: Cluster, client: BookieClient) -> None:
    for first, last in ((5, 4), (-3, 4)):
        with pytest.raises(BookieUnavailable):
            await client._ask(Kind.READ_LAC, [RANGE.pack(first, last)], ledger=1)
    assert cluster.bad


def test_a_range_that_an_entry_log_lost_is_not_said_to_be_there() -> None:
    """The log is written anew without it, index and checksum right: nothing else would ever notice."""
    with Simulation(3) as sim:

        async def main() -> None:
            box = Box(sim)
            send(box.bookie, box.peer, *[add(7, first, 5, lac=first - 1) for first in range(0, 50, 5)])
            await box.flushed()
            (log,) = box.bookie.dirs[0].table.logs.values()
            box.bookie.close()
            disk = box.ledgers.disk()
            index = entry_log.load(disk, log.number)[1].all
            writer = entry_log.LogWriter(disk, log.number)
            blocks = [
                (first, count, log.read(disk, offset, size))
                for offset, size, first, count in index.runs(index.group_of(7))
            ]
            writer.begin(entry_log.LedgerMark(7, 44, False))
            for first, count, block in blocks:
                if first not in (20, 25):
                    writer.put(first, count, block)
            writer.finish()
            box.restart()
            assert await held(box, 7, 0, 49) == [(0, 19), (30, 49)]

        sim.run(main())
