"""ConfigNode: three regions over a WAN in memory: forwarding, minorities, staleness, restarts."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from global_config.admin import ConfigAdmin
from global_config.node import ConfigNode
from global_config.view import ConfigView
from heliograph.kv.metadata_client import MetaClient
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.model.errors import MetadataError, MetadataUnavailable, OutcomeUnknown, VersionConflict
from tests.global_config.config_instance import PORT, REGIONS, Instance, simulate


def test_every_region_reads_and_writes_linearizably() -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        for name, client in instance.clients.items():
            version = await client.put(f"/{name}", b"1", expected=-1)
            for other in instance.clients.values():
                assert await other.get(f"/{name}") == (b"1", version)
                with pytest.raises(VersionConflict):
                    await other.put(f"/{name}", b"2", expected=-1)
        assert len(await instance.clients["us"].range("/", "0")) == 4, "and the history"
        assert sorted([await c.next_ids("n") for c in instance.clients.values()]) == [0, 1, 2]
        assert len({(await c.status())["leader"] for c in instance.clients.values()}) == 1

    simulate(main)


def test_a_region_sees_its_own_writes_in_its_copy() -> None:
    """The node answers a forwarded write only after it has applied it itself, and after it told the watches."""

    async def main(sim: Simulation, instance: Instance) -> None:
        await instance.clients["us"].put("/first", b"")
        for name in REGIONS:
            told: dict[str, bytes | None] = {}
            client = instance.clients[name]
            client.watch("/", lambda key, value, version, told=told: told.update({key: value}))
            await client.synced("/")
            for number in range(5):
                await client.put("/n", f"{name}{number}".encode())
                assert told["/n"] == f"{name}{number}".encode()

    simulate(main)


@pytest.mark.parametrize("seed", range(4))
def test_a_minority_refuses_writes_with_a_clear_sentence_and_its_copy_goes_on(seed: int) -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        admin = ConfigAdmin(instance.clients["us"])
        for name in REGIONS:
            await admin.create_region(name)
        await admin.create_tenant("t", TenantInfo(allowed_regions=REGIONS))
        views = {
            name: sim.machine(f"{name}-client").run(ConfigView, client) for name, client in instance.clients.items()
        }
        for view in views.values():
            await view.ready()
        await asyncio.sleep(2)
        assert all(view.stale_s() == 0 for view in views.values())
        cut = REGIONS[seed % 3]
        instance.mesh.isolate(cut)
        await asyncio.sleep(10)
        before = sim.now()
        with pytest.raises(
            MetadataUnavailable, match=rf"2 of its 3 voters must run and reach each other, and '{cut}' hears no leader"
        ):
            await ConfigAdmin(instance.clients[cut]).create_namespace("t/n", NamespacePolicies(regions=(cut,)))
        assert sim.now() - before < 6
        others = [name for name in REGIONS if name != cut]
        await ConfigAdmin(instance.clients[others[0]]).create_namespace("t/o", NamespacePolicies(regions=tuple(others)))
        await asyncio.sleep(1)
        assert views[others[1]].namespaces("t") == ["t/o"]
        assert views[cut].namespaces("t") == [] and views[cut].tenants() == ["t"]
        assert views[cut].stale_s() > 8 and views[others[0]].stale_s() == 0
        instance.mesh.heal()
        await asyncio.sleep(10)
        assert views[cut].namespaces("t") == ["t/o"] and views[cut].stale_s() == 0

    simulate(main, seed)


@pytest.mark.parametrize("end", ["power cut", "clean stop"])
@pytest.mark.parametrize("alone", REGIONS)
def test_a_region_that_starts_while_it_is_cut_off_serves_what_it_knew(alone: str, end: str) -> None:
    """Also to processes that start then: their copy is whole, and says that it is stale."""

    async def main(sim: Simulation, instance: Instance) -> None:
        admin = ConfigAdmin(instance.clients["us"])
        for name in REGIONS:
            await admin.create_region(name)
        await admin.create_tenant("t", TenantInfo(allowed_regions=REGIONS))
        await admin.create_namespace("t/n", NamespacePolicies(regions=REGIONS))
        await admin.create_partitioned("persistent://t/n/x", 3)
        if end == "power cut":  # what was committed in the last second before it may be missing
            await asyncio.sleep(2)
        else:
            await asyncio.sleep(0.5)
            for name in REGIONS:
                await sim.machine(name).ask(instance.nodes[name].stop)
        for name in REGIONS:
            instance.clients[name].close()
            sim.machine(name).power_cut()
        instance.mesh.isolate(alone)
        instance.start(alone)
        await asyncio.sleep(5)
        client = instance.client(alone)
        view = sim.machine(f"{alone}-client").run(ConfigView, client)
        await view.ready()
        assert [region.name for region in view.regions()] == list(REGIONS)
        assert (
            view.tenants() == ["t"] and view.namespaces("t") == ["t/n"] and view.partitions("persistent://t/n/x") == 3
        )
        assert view.namespace("t/n") == NamespacePolicies(regions=REGIONS)
        assert (await client.status())["leader"] is None
        await asyncio.sleep(2)
        assert view.stale_s() > 1.9
        with pytest.raises(MetadataUnavailable):
            await client.get("/regions/us")
        instance.mesh.heal()
        for name in REGIONS:
            if name != alone:
                instance.start(name)
        await asyncio.sleep(10)
        await ConfigAdmin(client).create_namespace("t/o", NamespacePolicies(regions=(alone,)))
        assert view.namespaces("t") == ["t/n", "t/o"] and view.stale_s() == 0

    simulate(main)


def test_a_write_under_way_when_the_leader_is_cut_off_is_unknown_at_worst_and_bounded() -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        await instance.clients["us"].put("/n", b"0")
        leader = instance.leader()
        instance.mesh.isolate(leader)
        before = sim.now()
        with pytest.raises((OutcomeUnknown, MetadataUnavailable)):
            await instance.clients[leader].put("/n", b"1")
        assert sim.now() - before < 10.5

    simulate(main)


def test_leases_of_another_region_are_kept_by_the_leader() -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        await instance.clients["us"].put("/n", b"0")
        client = instance.clients[next(name for name in REGIONS if name != instance.leader())]
        lease = await client.grant(3000)
        await client.put("/mine", b"", lease=lease)
        for _ in range(5):
            await asyncio.sleep(1)
            await client.renew(lease)
        assert await client.get("/mine") is not None
        await asyncio.sleep(4)
        assert await client.get("/mine") is None

    simulate(main)


@pytest.mark.parametrize("seed", range(8))
def test_each_write_is_made_once_whatever_is_cut_or_killed(seed: int) -> None:
    async def main(sim: Simulation, instance: Instance) -> None:
        rng = sim.rng("test")
        results: dict[str, int] = {"made": 0, "unknown": 0}

        async def count(client: MetaClient) -> None:
            for _ in range(10):
                try:
                    value, version = await client.get("/n") or (b"0", -1)
                    await client.put("/n", str(int(value) + 1).encode(), expected=version)
                    results["made"] += 1
                except OutcomeUnknown:
                    results["unknown"] += 1
                except MetadataError:
                    pass
                await asyncio.sleep(rng.uniform(0, 0.5))

        async def faults() -> None:
            while True:
                await asyncio.sleep(rng.uniform(1, 5))
                name = rng.choice(REGIONS)
                if rng.random() < 0.5:
                    instance.mesh.isolate(name)
                    await asyncio.sleep(rng.uniform(0, 6))
                    instance.mesh.heal()
                else:
                    sim.machine(name).power_cut()
                    await asyncio.sleep(rng.uniform(0, 3))
                    instance.start(name)

        failing = asyncio.create_task(faults())
        await asyncio.gather(*(count(client) for client in instance.clients.values()))
        failing.cancel()
        instance.mesh.heal()
        for name in REGIONS:
            if not sim.machine(name).running:
                instance.start(name)
        await asyncio.sleep(15)
        found = await instance.clients["us"].get("/n")
        assert found is not None and results["made"] <= int(found[0]) <= results["made"] + results["unknown"]
        assert results["made"] > 5

    simulate(main, seed)


def test_one_region_alone_needs_no_transport() -> None:
    with Simulation(1) as sim:

        async def serve(machine: Machine) -> None:
            node = ConfigNode(
                node_id="us",
                peers=[],
                disk=machine.disk("config"),
                transport=None,
                clock=machine.clock,
                rng=machine.rng,
                host=machine.host,
                port=PORT,
            )
            await node.start()

        async def main() -> None:
            sim.machine("us").start(serve)
            client = MetaClient([f"us:{PORT}"], clock=sim.clock(), rng=sim.rng("c"))
            await client.put("/a", b"1")
            assert await client.get("/a") is not None
            client.close()

        sim.run(main())
