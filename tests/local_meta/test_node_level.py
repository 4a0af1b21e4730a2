"""Metadata nodes say which feature level they speak: whoever is a member counts, there or away, and one that says
nothing is of an earlier version.
"""

from __future__ import annotations

import asyncio
import random

import msgpack
import pytest

from geo_tests.sim.loop import run_alone
from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.model.errors import PeerError
from heliograph.model.feature_levels import LEVEL
from local_meta import keys
from local_meta.node_level import UNSAID, NodeLevel, level_of, spoken
from tests.local_meta.group_of_nodes import PORT, Region, simulate


def say(sim: Simulation, name: str, level: int = UNSAID + 4) -> NodeLevel:
    """As the node's own process does at its start: by a connection to itself alone."""
    machine = sim.machine(name)
    said: NodeLevel = machine.run(
        lambda: NodeLevel(
            MetaClient([f"{name}:{PORT}"], clock=machine.clock, rng=machine.rng, settings=ClientSettings(timeout_s=1)),
            name,
            machine.rng,
            level=level,
        )
    )
    machine.run(said.start)
    return said


async def ask(sim: Simulation, region: Region) -> dict[str, int]:
    found: dict[str, int] = await sim.machine("c").ask(lambda: spoken(region.client, region.client.members))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_every_member_counts_also_one_that_is_away_and_one_that_says_nothing(seed: int) -> None:
    async def main(sim: Simulation, region: Region) -> None:
        say(sim, "m0")
        region.start("m1")
        early = say(sim, "m1")  # before it belongs to the group
        await asyncio.sleep(3.0)
        assert await ask(sim, region) == {"m0": UNSAID + 4}
        region.start("m2")
        for name in ("m1", "m2"):  # learners count as well as voters
            assert (await region.ask("add", name, f"{name}:{PORT}"))[1]
        await asyncio.sleep(4.0)
        assert await ask(sim, region) == {"m0": UNSAID + 4, "m1": UNSAID + 4, "m2": UNSAID}, "m2's version says nothing"
        assert not len(early._tasks), "what is said once is enough"
        sim.machine("m2").kill()
        assert (await ask(sim, region))["m2"] == UNSAID
        say(sim, "m0", UNSAID + 1)  # it was started again, in an earlier version
        await asyncio.sleep(1.0)
        assert (await ask(sim, region))["m0"] == UNSAID + 1
        region.start("m2")
        assert (await region.ask("remove", "m1"))[1]
        assert await ask(sim, region) == {"m0": UNSAID + 1, "m2": UNSAID}, "who was removed counts no more"

    simulate(main, seed)


def test_a_key_that_says_nothing_readable_is_of_an_earlier_version() -> None:
    assert level_of(msgpack.packb({"level": 7})) == 7
    for value in (
        b"",
        b"\xc1",
        msgpack.packb([7]),
        msgpack.packb({}),
        msgpack.packb({"level": "7"}),
        msgpack.packb({"level": True}),
    ):
        assert (level_of(value), level_of(value, unsaid=1)) == (UNSAID, 1)
    assert keys.id_of(keys.metadata_node("us meta/0")) == "us meta/0"
    assert UNSAID <= LEVEL


def test_it_goes_on_trying_whatever_the_answer_is_and_the_node_can_be_stopped() -> None:
    class Damaged(EmbeddedStore):
        asked = 0

        async def get(self, key: str) -> tuple[bytes, int] | None:
            self.asked += 1
            if self.asked < 3:
                raise PeerError("metadata answer: it ends early")
            return await super().get(key)

    async def main() -> None:
        store = Damaged(KvMachine())
        level = NodeLevel(store, "m0", random.Random(1))
        level.start()
        await asyncio.sleep(10.0)
        found = store.machine.get(keys.metadata_node("m0"))
        assert found is not None and level_of(found[0]) == LEVEL
        await level.stop()

    run_alone(main())


def test_more_members_than_one_range_returns_are_all_heard() -> None:
    async def main() -> None:
        store = EmbeddedStore(KvMachine(settings=MachineSettings(range_limit=3)))
        names = [f"m{number}" for number in range(10)]
        for name in names:
            await store.put(keys.METADATA_NODES + name, msgpack.packb({"level": UNSAID + 4}))

        async def members() -> tuple[dict[str, object], bool]:
            return {"members": [{"member": name} for name in names]}, False

        assert await spoken(store, members) == dict.fromkeys(names, UNSAID + 4)

    asyncio.run(main())
