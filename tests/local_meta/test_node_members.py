"""The group of a region's metadata grows, hands over, and shrinks while clients write: real nodes and frames on the
simulator.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from functools import partial

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import MetadataError, MetadataUnavailable, NotAllowed, PeerError
from heliograph.wire.metadata_frames import body
from local_meta.transport import FrameTransport
from tests.local_meta.group_of_nodes import PORT, Region, simulate


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_from_one_to_three_and_away_from_the_founder_while_writes_go_on(seed: int, keeps: bool) -> None:
    async def main(sim: Simulation, region: Region) -> None:
        writer = asyncio.ensure_future(region.write())
        await region.grow("m1")
        await region.grow("m2")
        report, _ = await region.ask("show")
        assert next((row["member"], row["role"], row["behind"]) for row in report["members"]) == ("m0", "voter", 0)
        assert {row["address"] for row in report["members"]} == {"", f"m1:{PORT}", f"m2:{PORT}"} and report["writes"][
            "count"
        ]
        assert (await region.ask("transfer", "m2"))[1]
        assert (await region.ask("show"))[0]["leader"] == "m2"
        assert (await region.ask("remove", "m0"))[1]
        sim.machine("m0").kill()
        await asyncio.sleep(2.0)
        region.writing = False
        await writer
        report, _ = await region.ask("show")
        assert [row["member"] for row in report["members"]] == ["m1", "m2"]
        assert region.written > 20
        for name in ("m1", "m2"):
            machine = region.nodes[name].machine
            assert all(machine.get(f"/k/{number}") for number in range(region.written - 5)), name

    simulate(main, seed, keeps)


def test_a_group_that_grew_comes_back_after_a_power_cut_without_its_settings_knowing() -> None:
    async def main(sim: Simulation, region: Region) -> None:
        await region.grow("m1")
        await region.grow("m2")
        await sim.machine("c").ask(lambda: region.client.put("/a", b"1"))
        for name in ("m0", "m1", "m2"):
            sim.machine(name).power_cut()
        for name in ("m1", "m2"):  # m1 knows m2 from its log alone
            region.start(name)
        for _ in range(200):
            await asyncio.sleep(0.05)
            if any(region.nodes[name].raft.is_leader for name in ("m1", "m2")):
                break
        assert any(region.nodes[name].raft.is_leader for name in ("m1", "m2"))

    simulate(main)


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_what_was_acknowledged_survives_power_cuts_in_the_middle_of_changes(seed: int, keeps: bool) -> None:
    """Four nodes lose power at random, lose what was not synced, and come back, while an operator adds, promotes,
    removes, and hands over.
    """

    async def main(sim: Simulation, region: Region) -> None:
        rng, names = sim.rng("operator"), ["m0", "m1", "m2", "m3"]
        acknowledged: list[str] = []
        done = {"add": 0, "promote": 0, "remove": 0, "transfer": 0}

        async def write() -> None:
            for number in itertools.count():
                await asyncio.sleep(0.02)
                if not region.writing:
                    return
                with contextlib.suppress(MetadataError):
                    await sim.machine("c").ask(partial(region.client.put, f"/k/{number}", b"v"))
                    acknowledged.append(f"/k/{number}")

        async def operate() -> None:
            while region.writing:
                verb, name = rng.choice(("add", "promote", "promote", "remove", "transfer")), rng.choice(names)
                try:
                    done[verb] += (
                        await region.ask(verb, name, f"{name}:{PORT}" if verb == "add" and name != "m0" else "")
                    )[1]
                except (MetadataError, NotAllowed):
                    await asyncio.sleep(0.05)

        tasks = [asyncio.ensure_future(write()), asyncio.ensure_future(operate())]
        for name in names[1:]:
            region.start(name)
        for _ in range(14):
            await asyncio.sleep(rng.uniform(0.2, 1.5))
            name = rng.choice(names)
            sim.machine(name).power_cut()
            await asyncio.sleep(rng.uniform(0.05, 0.8))
            region.start(name)
        await asyncio.sleep(12.0)
        region.writing = False
        await asyncio.gather(*tasks)
        report, _ = await region.ask("show")
        assert report["leader"] is not None and len(acknowledged) > 50 and sum(done.values()) > 3, (
            done,
            len(acknowledged),
        )
        for key in acknowledged:
            assert await sim.machine("c").ask(partial(region.client.get, key)) is not None, key
        await asyncio.sleep(2.0)
        tables = [region.nodes[row["member"]].machine for row in report["members"]]
        assert all(table.get(key) for table in tables for key in acknowledged), "and on every member"

    simulate(main, seed, keeps)


def test_a_removal_that_loses_the_quorum_is_refused_with_a_sentence() -> None:
    async def main(sim: Simulation, region: Region) -> None:
        await region.grow("m1")
        await region.grow("m2")
        sim.machine("m2").kill()
        await asyncio.sleep(2.0)
        with pytest.raises(NotAllowed, match=r"the quorum would be lost.*m2 does not"):
            await region.ask("remove", "m1")
        assert (await region.ask("remove", "m2"))[1]
        assert not (await region.ask("remove", "m2"))[1], "a repetition changes nothing"

    simulate(main)


def test_without_a_leader_a_member_still_says_what_it_knows() -> None:
    async def main(sim: Simulation, region: Region) -> None:
        await region.grow("m1")
        sim.machine("m1").kill()
        await asyncio.sleep(3.0)
        with pytest.raises(MetadataUnavailable):
            await region.ask("show")
        report, changed = await region.ask("here")
        assert report["leader"] is None and not changed and [row["behind"] for row in report["members"]] == [None, None]

    simulate(main)


def test_a_frame_of_a_version_without_addresses_is_read() -> None:
    heard: list[tuple[str, bytes]] = []
    transport = FrameTransport("m0", {"m1": "h:1"}, rng=random.Random(1))
    transport.on_receive(lambda sender, message: heard.append((sender, message)))
    transport.on_frame(body("m1", b"old"))
    transport.on_frame(body("m1", b"new", ""))
    transport.on_frame(body("m2", b"joined", "h:2"))
    assert heard == [("m1", b"old"), ("m1", b"new"), ("m2", b"joined")] and transport.addresses.of("m2") == "h:2"
    for wrong in (body("m3", b"x", ""), body("m3", b"x"), body("m1"), body(1, b"x", ""), b"\xc1"):
        with pytest.raises(PeerError):
            transport.on_frame(wrong)
