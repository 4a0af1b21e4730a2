"""Long listings of watches: in pieces, of one moment, with what changed meanwhile behind them; larger than any
buffer.
"""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.metadata_store import Delete, Put
from heliograph.kv.server.metadata_server import ServerSettings
from heliograph.kv.state_machine import MachineSettings
from heliograph.wire.metadata_frames import Frame, body, frame
from tests.heliograph.kv.group import HELLO, PORT, Group, Mirror, Raw, simulate, watches_while_all_breaks

PIECE_BY_PIECE = ServerSettings(pieces_at_once=1)


@pytest.mark.parametrize("seed", range(25))
def test_watches_end_with_the_table_also_where_listings_come_in_pieces(seed: int) -> None:
    watches_while_all_breaks(seed, machine=MachineSettings(part_rows=2), server=PIECE_BY_PIECE)


@pytest.mark.parametrize("seed", range(8))
def test_a_listing_larger_than_the_buffer_comes_while_everything_changes(seed: int) -> None:
    async def main(sim: Simulation, group: Group) -> None:
        rng, writer, reader = sim.rng("test"), group.client("w"), group.client("r")
        for number in range(60):
            await writer.put(f"/k/{number:03d}", bytes(100_000))
        mirror = Mirror(reader, "/k/")
        began_in_pieces = False
        for _ in range(80):
            key = f"/k/{rng.randrange(70):03d}"
            await writer.txn([Delete(key)] if rng.random() < 0.3 else [Put(key, b"new"), Put(key + "x", b"too")])
            began_in_pieces |= bool(group.servers["m0"]._listings)
        assert began_in_pieces
        await reader.synced("/k/")
        await asyncio.sleep(1)
        assert mirror.table == {key: (value, version) for key, value, version in group.replica().machine.under("/k/")}
        assert len(group.servers["m0"].connections) == 2
        assert not group.servers["m0"]._listings and not group.replica().machine._images

    simulate(main, seed=seed, server=ServerSettings(pieces_at_once=1, buffer_bytes_max=1 << 20))


def test_a_listing_that_nobody_wants_any_more_is_given_up() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client, machine = group.client(), group.replica().machine
        for number in range(60):
            await client.put(f"/k/{number:03d}", bytes(100_000))
        raws: list[Raw] = []
        for _ in range(2):
            _, raw = await asyncio.get_running_loop().create_connection(Raw, "m0", PORT)
            raw.transport.write(HELLO + frame(Frame.WATCH, 1, body("/k/", -1)))
            raw.transport.pause_reading()
            raws.append(raw)
        await asyncio.sleep(0.5)
        assert len(group.servers["m0"]._listings) == len(machine._images) == 2
        raws[0].transport.resume_reading()
        raws[0].transport.write(frame(Frame.UNWATCH, 1, body()))
        raws[1].transport.abort()
        await asyncio.sleep(2)
        assert not group.servers["m0"]._listings and not machine._images
        assert len(raws[0].data) < 60 * 100_000

    simulate(main, server=PIECE_BY_PIECE)


def test_a_listing_whose_table_was_replaced_begins_anew() -> None:
    """By a snapshot from the leader: the connection is closed, and the client asks again."""

    async def main(sim: Simulation, group: Group) -> None:
        client, machine = group.client(), group.replica().machine
        for number in range(60):
            await client.put(f"/k/{number:03d}", bytes(100_000))
        _, raw = await asyncio.get_running_loop().create_connection(Raw, "m0", PORT)
        raw.transport.write(HELLO + frame(Frame.WATCH, 1, body("/k/", -1)))
        raw.transport.pause_reading()
        await asyncio.sleep(0.5)
        assert len(group.servers["m0"]._listings) == 1
        sim.machine("m0").run(machine.restore, machine.snapshot())
        raw.transport.resume_reading()
        await asyncio.sleep(1)
        assert len(group.servers["m0"].connections) == 1 and not group.servers["m0"]._listings and not machine._images

    simulate(main, server=PIECE_BY_PIECE)
