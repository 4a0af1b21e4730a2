"""Members on real storage whose folders are emptied: at the founding, behind it, in the middle of learning."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import permutations

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.model.errors import CorruptData, MetadataError, NotAllowed
from heliograph.raft.disk import life_file
from heliograph.raft.disk.snapshot_file import write_snapshot
from heliograph.raft.member.raft_node import RaftNode
from heliograph.raft.membership import AddLearner, Promote
from heliograph.raft.messages import Config
from tests.heliograph.raft.machines import Group, Journal


def empty(group: Group, name: str) -> None:
    machine = group.sim.machine(name)
    machine.power_cut()
    machine.platters().clear()


def life_of(group: Group, name: str) -> tuple[int, object]:
    found = life_file.read(group.sim.machine(name).platter("raft").disk())
    assert found is not None
    return found


def test_nobody_leads_before_all_founders_are_there_and_then_it_takes_no_time() -> None:
    with Simulation(31) as sim:
        group = Group(sim, 3)

        async def main() -> None:
            group.start("n0", "n1")
            await asyncio.sleep(20)
            assert not group.leaders() and life_of(group, "n0")[1] is None
            group.start("n2")
            await group.propose(await group.leader(limit_s=5), b"first")
            await group.caught_up()
            lives = {life_of(group, name)[1] for name in group.names}
            assert lives == {tuple((name, life_of(group, name)[0]) for name in group.names)}

        sim.run(main())


@pytest.mark.parametrize("seed", range(6))
def test_a_voter_comes_back_with_an_empty_folder_and_learns(seed: int) -> None:
    with Simulation(seed) as sim:
        group = Group(sim, 3)

        async def main() -> None:
            group.start()
            count = 0
            for name in [*group.names, *group.names]:
                leader = await group.leader()
                await asyncio.gather(*(group.propose(leader, b"%d" % (count + i)) for i in range(200)))
                count += 200
                before = life_of(group, name)[0]
                empty(group, name)
                group.start(name)
                await asyncio.sleep(sim.rng(f"{name} {count}").uniform(0, 0.5))
                empty(group, name)  # again, in the middle of it
                group.start(name)
                await asyncio.sleep(sim.rng(f"{name} {count} again").uniform(0, 0.5))
                sim.machine(name).power_cut()
                group.start(name)
                await asyncio.sleep(5)
                await group.caught_up()
                life, proven = life_of(group, name)
                assert life != before and proven == () and len(group.machines[name].lines) == count
            for name in group.names:
                sim.machine(name).power_cut()
            group.start()
            await group.leader()
            await group.propose(await group.leader(), b"last")
            await group.caught_up()
            assert len(group.machines["n0"].lines) == count + 1

        sim.run(main(), limit_s=600)


@pytest.mark.parametrize("seed", range(3))
def test_an_older_copy_is_brought_up_by_a_leader_that_is_there(seed: int) -> None:
    with Simulation(seed) as sim:
        group = Group(sim, 3)

        async def main() -> None:
            group.start()
            leader = await group.leader()
            await asyncio.gather(*(group.propose(leader, b"%d" % i) for i in range(20)))
            await group.caught_up()
            name = next(name for name in group.names if name != leader)
            machine = sim.machine(name)
            machine.power_cut()
            older = machine.platter("raft").image()
            group.start(name)
            await asyncio.gather(*(group.propose(leader, b"%d" % i) for i in range(20, 50)))
            await group.caught_up()
            machine.power_cut()
            machine.platter("raft").put_back(older)
            group.start(name)
            await group.propose(leader, b"50")
            await group.caught_up()
            assert group.leaders() == [leader] and len(group.machines[name].lines) == 51

        sim.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_an_older_copy_undoes_nothing_while_nobody_leads(seed: int) -> None:
    with Simulation(seed) as sim:
        group = Group(sim, 3)

        async def main() -> None:
            group.start()
            leader = await group.leader()
            await group.propose(leader, b"kept")
            await group.caught_up()
            name, lagging = (name for name in group.names if name != leader)
            machine = sim.machine(name)
            machine.power_cut()
            older = machine.platter("raft").image()
            group.start(name)
            await asyncio.sleep(2)
            group.network.isolate(lagging, group.names)
            await group.propose(leader, b"precious")
            for gone in (leader, name):
                sim.machine(gone).power_cut()
            machine.platter("raft").put_back(older)
            group.network.heal()
            group.start(name)
            await asyncio.sleep(10)
            assert not group.leaders() and life_of(group, name)[1] is None
            group.start(leader)
            await group.propose(await group.leader(), b"new")
            await group.caught_up()
            assert group.machines[lagging].commands() == [b"kept", b"precious", b"new"]
            await asyncio.sleep(2)
            assert life_of(group, name)[1] == ()

        sim.run(main())


def test_a_lone_voter_that_is_emptied_begins_anew_at_once() -> None:
    with Simulation(32) as sim:
        group = Group(sim, 1)

        async def main() -> None:
            for _ in range(2):
                group.start()
                await group.leader(limit_s=0.2)
                assert await group.propose("n0", b"a") == b"1"
                empty(group, "n0")

        sim.run(main())


class Grown(Group):
    """n0 begins alone; n1 and n2 wait until they are added. named: those that n0's settings name."""

    named: tuple[str, ...] = ("n1", "n2")

    async def _serve(self, machine: Machine) -> None:
        name, first = machine.host, machine.host == "n0"
        journal = self.machines[name] = Journal()
        node = self.nodes[name] = RaftNode(
            node_id=name,
            peers=self.names,
            joining=not first,
            machine=journal,
            disk=machine.disk("raft"),
            transport=self.network.transport(name),
            settings=replace(self.settings, later=self.named) if first else self.settings,
            clock=machine.clock,
            rng=machine.rng,
        )
        node.on_role_change = self.roles[name].append
        await node.start()

    def enrol(self) -> None:
        """As the step that makes the folder of n0 does."""
        life_file.enrol(self.sim.machine("n0").platter("raft").disk())

    async def join(self, name: str, limit_s: float) -> bool:
        """As a host's step does with the member that it has started; False: it has given up."""
        begun = self.sim.loop.time()
        while self.sim.loop.time() < begun + limit_s:
            for leader in self.leaders():
                node = self.nodes[leader]
                if name in node.config.voters:
                    return True
                change = Promote(name) if name in node.config.members else AddLearner(name)
                with suppress(MetadataError, NotAllowed):
                    await self.sim.machine(leader).ask(partial(node.change, change, timeout_s=5.0))
            await asyncio.sleep(0.1)
        return False

    async def grow(self) -> None:
        if idle := [name for name in self.names if not self.sim.machine(name).running]:
            self.start(*idle)
        for name in self.names[1:]:
            for change in (AddLearner(name), Promote(name)):
                for _ in range(100):
                    leader = await self.leader()
                    try:
                        await self.sim.machine(leader).ask(partial(self.nodes[leader].change, change, timeout_s=5.0))
                        break
                    except (MetadataError, NotAllowed):  # it is behind, or what came before is on its way
                        await asyncio.sleep(0.1)


@pytest.mark.parametrize("order", [*permutations(("n0", "n1", "n2"))])
@pytest.mark.parametrize("limit_s", (3.0, 60.0))
def test_a_fresh_description_comes_up_in_any_order_one_at_a_time(order: tuple[str, ...], limit_s: float) -> None:
    """limit_s: how long the step of one that joins waits before it gives up; it is given again."""
    with Simulation(42) as sim:
        group = Grown(sim, 3)
        group.enrol()

        async def main() -> None:
            late = []
            for name in order:
                group.start(name)
                if name == "n0":
                    await group.leader()
                elif not await group.join(name, limit_s):
                    late.append(name)
                    if limit_s > 5 and name == order[0]:
                        assert not group.leaders(), "nobody leads before the first voter is there"
            for name in late:
                assert await group.join(name, limit_s)
            await group.propose(await group.leader(), b"a")
            await group.caught_up()
            assert [group.nodes[name].config.voters for name in group.names] == [("n0", "n1", "n2")] * 3
            assert not life_file.is_enrolled(sim.machine("n0").platter("raft").disk())

        sim.run(main(), limit_s=600)


@pytest.mark.parametrize("wait_s", (0.0, 0.4, 3.0, 9.9, 10.5))
def test_a_power_cut_before_the_first_voter_has_founded_costs_it_nothing(wait_s: float) -> None:
    with Simulation(44) as sim:
        group = Grown(sim, 3)
        group.enrol()

        async def main() -> None:
            for _ in range(3):
                group.start("n0")
                await asyncio.sleep(wait_s)
                sim.machine("n0").power_cut()
            group.start("n0")
            assert await group.leader() == "n0"

        sim.run(main())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("leaderless", (False, True))
def test_a_founder_whose_whole_machine_is_made_anew_still_asks_who_is_there(seed: int, leaderless: bool) -> None:
    """Its step enrols it again. leaderless: of the others only one is there, and elects nobody."""
    with Simulation(seed) as sim:
        group = Grown(sim, 3)
        group.enrol()

        async def main() -> None:
            await group.grow()
            await group.propose(await group.leader(), b"kept")
            await group.caught_up()
            sim.machine("n0").power_cut()
            if leaderless:
                sim.machine("n2").power_cut()
            await asyncio.sleep(3)
            empty(group, "n0")
            group.enrol()
            group.start("n0")
            for _ in range(600):
                await asyncio.sleep(0.05)
                assert "n0" not in group.leaders() or len(group.machines["n0"].lines) == 1, "it leads, of nothing"
            if leaderless:
                assert not group.leaders()
                group.start("n2")
            await group.propose(await group.leader(), b"last")
            await group.caught_up()
            assert [len(group.machines[name].lines) for name in group.names] == [2] * 3

        sim.run(main(), limit_s=300)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cut", (False, True))
@pytest.mark.parametrize("enrolled", (False, True))
def test_a_founder_that_was_alone_and_is_emptied_learns_from_those_that_came_later(
    seed: int, cut: bool, enrolled: bool
) -> None:
    """cut: it begins while it reaches nobody; and one of the others is away. enrolled: before it was emptied."""
    with Simulation(seed) as sim:
        group = Grown(sim, 3)
        if enrolled:
            group.enrol()

        async def main() -> None:
            await group.grow()
            for count in range(40):
                await group.propose(await group.leader(), b"%d" % count)
            await group.caught_up()
            away = sim.rng("away").choice(("n1", "n2"))
            sim.machine("n0").power_cut()
            await asyncio.sleep(3)
            empty(group, "n0")
            if cut:
                group.network.isolate("n0", group.names)
                sim.machine(away).power_cut()
            group.start("n0")
            for _ in range(300):
                await asyncio.sleep(0.05)
                assert "n0" not in group.leaders() or len(group.machines["n0"].lines) == 40, "it leads, of nothing"
            if cut:
                assert group.leaders() in ([], [({"n1", "n2"} - {away}).pop()])
                group.network.heal()
                await asyncio.sleep(sim.rng("back").uniform(0, 5))
                group.start(away)
            await group.propose(await group.leader(), b"last")
            await group.caught_up()
            assert [len(group.machines[name].lines) for name in group.names] == [41] * 3

        sim.run(main(), limit_s=300)


def test_an_older_copy_of_the_only_voter_says_that_nobody_else_can_lead(caplog: pytest.LogCaptureFixture) -> None:
    with Simulation(45) as sim:
        group = Grown(sim, 2)
        group.named = ("n1",)

        async def main() -> None:
            group.start()
            await group.propose(await group.leader(), b"a")
            node, machine = group.nodes["n0"], sim.machine("n0")
            await machine.ask(partial(node.change, AddLearner("n1"), timeout_s=5.0))
            await asyncio.sleep(2)
            machine.power_cut()
            older = machine.platter("raft").image()
            group.start("n0")
            await group.propose(await group.leader(), b"b")
            await group.caught_up()
            machine.power_cut()
            machine.platter("raft").put_back(older)
            group.start("n0")
            await asyncio.sleep(20)
            assert not group.leaders()

        sim.run(main())
    said = {record.msg: record.__dict__ for record in caplog.records}
    assert said["folder.older"]["do"] == "restore a backup: no other voter can lead"
    assert said["group.asked_for"]["later"] == ("n1",)


def test_a_first_voter_with_later_ones_founds_once_each_of_them_knows_of_no_group() -> None:
    """As where all hosts of a description begin at once."""
    with Simulation(41) as sim:
        group = Grown(sim, 3)

        async def main() -> None:
            group.start("n0", "n1")
            await asyncio.sleep(20)
            assert not group.leaders() and life_of(group, "n0")[1] is None
            group.start("n2")
            assert await group.leader(limit_s=2) == "n0"
            sim.machine("n0").power_cut()
            group.start("n0")
            assert await group.leader(limit_s=2) == "n0", "and it is no question again"
            await group.grow()
            await group.propose(await group.leader(), b"a")
            await group.caught_up()

        sim.run(main())


def test_a_log_of_an_earlier_version_has_no_life_and_counts() -> None:
    with Simulation(33) as sim:
        group = Group(sim, 3)

        async def main() -> None:
            group.start()
            await group.propose(await group.leader(), b"old")
            await group.caught_up()
            for name in group.names:
                sim.machine(name).power_cut()
                sim.machine(name).platter("raft").disk().remove(life_file.LIFE)
            group.start("n0", "n1")
            await group.propose(await group.leader(), b"new")
            assert life_file.LIFE not in sim.machine("n0").platter("raft").disk().names()

        sim.run(main())


def test_a_log_that_is_gone_is_an_empty_folder_whatever_else_lies_there() -> None:
    with Simulation(34) as sim:
        group = Group(sim, 3)

        async def main() -> None:
            group.start()
            await group.propose(await group.leader(), b"a")
            await group.caught_up()
            before = life_of(group, "n1")[0]
            sim.machine("n1").power_cut()
            disk = sim.machine("n1").platter("raft").disk()
            for name in disk.names():
                if name.startswith("log-"):
                    disk.remove(name)
            group.start("n1")
            await asyncio.sleep(5)
            await group.caught_up()
            assert life_of(group, "n1")[0] != before and life_of(group, "n1")[1] == ()

        sim.run(main())


def test_a_damaged_life_is_refused_with_what_to_do() -> None:
    with Simulation(35) as sim:
        group = Group(sim, 3)

        async def main() -> None:
            group.start()
            await group.leader()
            sim.machine("n1").power_cut()
            sim.machine("n1").platter("raft").flip_bit(life_file.LIFE, 3)
            with pytest.raises(CorruptData, match="empty the folder of this member"):
                life_of(group, "n1")

        sim.run(main())


@pytest.mark.parametrize("step", [None, *range(1, 14, 2)])
def test_voters_that_are_restored_found_the_group_and_one_that_is_not_learns(step: int | None) -> None:
    """All begin with the same snapshot; step: power goes at that step of the first start."""
    with Simulation(36) as sim:
        group = Group(sim, 3)
        restored = Journal([(7, b"kept")])

        async def main() -> None:
            for name in group.names[:2]:
                disk = sim.machine(name).disk("raft")
                write_snapshot(disk, 50, 1, Config(tuple(group.names)), [restored.snapshot()])
                life_file.restore(disk)
            if step is not None:
                sim.machine("n0").platter("raft").cut_after(step)
                group.start("n0")
                await asyncio.sleep(1)
                sim.machine("n0").power_cut()
            group.start()
            await group.propose(await group.leader(), b"new")
            await group.caught_up()
            assert group.machines["n2"].commands() == [b"kept", b"new"]
            await asyncio.sleep(2)
            lives = [life_of(group, name) for name in group.names]
            assert len({life for life, _ in lives}) == 3 and all(life and proven == () for life, proven in lives)
            empty(group, "n0")
            group.start("n0")
            await asyncio.sleep(5)
            await group.caught_up()
            assert group.machines["n0"].commands() == [b"kept", b"new"]

        sim.run(main())
