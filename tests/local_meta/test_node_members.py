"""The group of a region's metadata grows, hands over, and shrinks while clients write: real nodes and frames on the
simulator.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from geo_tests.sim.table import SimTable
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.model.errors import MetadataError, MetadataUnavailable, NotAllowed, PeerError
from heliograph.raft.core import CoreSettings
from heliograph.raft.member.raft_node import RaftSettings
from heliograph.wire.metadata_frames import body
from local_meta.node import LocalMetaNode, LocalMetaSettings
from local_meta.transport import FrameTransport

PORT = 7001
SETTINGS = LocalMetaSettings(
    raft=RaftSettings(
        core=CoreSettings(election_timeout_s=0.5, heartbeat_s=0.1),
        snapshot_entries=60,
        keep_entries=10,
        segment_bytes=64 << 10,
    )
)
"""Snapshots come often, so that who lags gets one, with the group in it."""


class Region:
    """One founder, m0, and nodes that wait to be added; writers that go on all the time."""

    def __init__(self, sim: Simulation, keeps: bool = False) -> None:
        """keeps: the nodes keep their tables themselves, and make snapshots only for each other."""
        self.sim, self.keeps = sim, keeps
        self.nodes: dict[str, LocalMetaNode] = {}
        self.start("m0")
        machine = sim.machine("c")
        machine.start(_idle)
        self.client: MetaClient = machine.run(
            lambda: MetaClient(
                [f"m{i}:{PORT}" for i in range(4)],
                clock=machine.clock,
                rng=machine.rng,
                settings=ClientSettings(timeout_s=8),
            )
        )
        machine.run(self.client._run)
        self.written = 0
        self.writing = True

    def start(self, name: str) -> None:
        self.sim.machine(name).start(self._serve)

    async def _serve(self, machine: Machine) -> None:
        joining = machine.host != "m0"
        node = LocalMetaNode(
            node_id=machine.host,
            disk=machine.disk("meta"),
            clock=machine.clock,
            rng=machine.rng,
            host=machine.host,
            port=PORT,
            peers={"m0": f"m0:{PORT}"},
            joining=joining,
            table=SimTable(machine.disk("table")) if self.keeps else None,
            settings=SETTINGS,
        )
        self.nodes[machine.host] = node
        await node.start()

    async def ask(self, verb: str, member: str = "", address: str = "") -> tuple[dict[str, Any], bool]:
        return await self.sim.machine("c").ask(lambda: self.client.members(verb, member, address))

    async def write(self) -> None:
        """One after the other; each must be answered."""
        while self.writing:
            await self.sim.machine("c").ask(lambda: self.client.put(f"/k/{self.written}", b"v"))
            self.written += 1

    async def grow(self, name: str) -> None:
        self.start(name)
        assert (await self.ask("add", name, f"{name}:{PORT}"))[1]
        for _ in range(200):
            try:
                await self.ask("promote", name)
                return
            except NotAllowed as error:
                assert "behind" in str(error) or "not committed" in str(error) or "does not answer" in str(error)
            await asyncio.sleep(0.05)
        raise AssertionError(f"{name} never caught up")


async def _idle(_: Machine) -> None:
    pass


def simulate(
    main: Callable[[Simulation, Region], Coroutine[Any, Any, None]], seed: int = 1, keeps: bool = False
) -> None:
    with Simulation(seed) as sim:

        async def run() -> None:
            await main(sim, Region(sim, keeps))

        sim.run(run(), limit_s=300)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("seed", range(6))
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
