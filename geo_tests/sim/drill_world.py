"""DrillWorld: a whole instance that is rehearsed all the time, while it is moved, failed over, and broken.

Is: a PassiveWorld with somebody who gives `dr drill` again and again, each step by a conductor of its own, as if the
broker before had died; brokers die in the middle of steps, too. Isn't: the commands, and HTTP between regions
(`geo_tests/wan/test_disaster.py`): a region is asked on the machine of its broker.
Invariants: no step of a drill changes who may write to the namespace itself (what its messages need is the world's own
check); the shadow is gone when the drill has ended; every report is signed by a region of the instance; in a healthy
world a drill passes, and says that nothing is at risk.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

from geo_tests.sim.checkers import Violation
from geo_tests.sim.passive_world import PassiveWorld
from geo_tests.sim.region import CONFIG_PORT, NAMESPACE
from global_config import keys
from global_config.admin import ConfigAdmin
from heliograph.kv.metadata_client import MetaClient
from heliograph.kv.metadata_store import Op
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo
from heliograph.model.configuration.drill_shadows import mark
from heliograph.model.configuration.leadership import Leadership
from heliograph.model.errors import AlreadyExists, HeliographError, MetadataUnavailable
from region_node.dr.drill_settings import DrillSettings
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.leadership.write_gates import Gate
from region_node.dr.operations.drill import Drill, shadow_of
from region_node.dr.operations.operation import DRILL, Operation, StepAges
from region_node.dr.operations.operation_steps import Conductor
from region_node.dr.operations.report_signing import Signer, check
from region_node.dr.rehearsal.drill_clients import DrillClients
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.region_facts import facts_here
from region_node.faces.admin.dr.disaster_recovery import counts_here
from region_node.faces.admin.dr.drills import RegionShadows, audits, drop, fill, latencies, probe
from region_node.process.broker_role import BrokerRole

_DRILLER = "driller"
_ANSWER_S = 20.0
_END_S = 120.0


class _Watched(Switching):
    """A drill may read whose the namespace is; whoever would change that is found."""

    async def change(self, namespace: str, change: Callable[[Leadership], Leadership]) -> tuple[Leadership, int]:
        return await super().change(_not_live(namespace), change)

    async def flip(
        self,
        namespace: str,
        to: str,
        since_ms: int | None = None,
        *,
        regions: Sequence[str],
        beside: Callable[[], Awaitable[Sequence[Op]]] | None = None,
    ) -> tuple[Leadership | None, list[str]]:
        return await super().flip(_not_live(namespace), to, since_ms, regions=regions, beside=beside)

    async def end(self, namespace: str) -> None:
        await super().end(_not_live(namespace))

    async def forget(self, name: str) -> None:
        await super().forget(_not_live(name))


def _not_live(namespace: str) -> str:
    if namespace == NAMESPACE:
        raise Violation(f"a drill changes {namespace} itself")
    return namespace


class _Shadows:
    """What a drill asks of the regions of a world."""

    def __init__(self, world: DrillWorld, config: ConfigAdmin) -> None:
        self._world, self._config = world, config

    async def audit(self, region: str, namespace: str, since_ms: int) -> dict[str, Any]:
        found = await self._world.on(region, lambda admin: audits(admin, namespace, since_ms=since_ms))
        return cast(dict[str, Any], found)

    async def make(self, shadow: str, policies: NamespacePolicies) -> None:
        try:
            await self._config.create_namespace(
                shadow, replace(policies, policies={**policies.policies, "properties": mark(shadow)})
            )
        except AlreadyExists:
            pass

    async def partition(self, partitions: Mapping[str, int]) -> None:
        for topic, count in partitions.items():
            try:
                await self._config.create_partitioned(topic, count)
            except AlreadyExists:
                pass

    async def fill(self, region: str, shadow: str, topics: Sequence[str]) -> None:
        await self._world.on(region, lambda admin: fill(admin, shadow, {"topics": list(topics)}))

    async def probe(self, region: str, shadow: str, topics: Sequence[str]) -> list[float]:
        given = {"topics": list(topics)}
        return cast(list[float], (await self._world.on(region, lambda admin: probe(admin, shadow, given)))["each_ms"])

    async def clients(self, verb: str, region: str, shadow: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
        return cast(dict[str, Any], await self._world.on(region, lambda admin: _clients(admin, verb, shadow, given)))

    async def drop(self, shadow: str, region: str) -> int:
        return cast(int, await self._world.on(region, lambda admin: _drop(admin, shadow)))

    async def latencies(self, region: str, namespace: str) -> dict[str, list[int]]:
        return cast(dict[str, list[int]], await self._world.on(region, lambda admin: latencies(admin, namespace)))

    def here(self) -> list[str]:
        return []  # each drill is gone on with, and cleans up itself

    async def sign(self, report: dict[str, Any]) -> dict[str, Any]:
        return cast(
            dict[str, Any],
            await self._world.on(self._world.settings.regions[-1], lambda admin: _signer(admin).sign(report)),
        )


async def _clients(admin: Admin, verb: str, shadow: str, given: dict[str, Any] | None) -> dict[str, Any]:
    async def elsewhere(*_: object) -> NoReturn:
        raise AssertionError("the region is asked itself")

    return await RegionShadows(admin, elsewhere).clients(verb, admin.region, shadow, given)


async def _drop(admin: Admin, shadow: str) -> int:
    return 0 if admin.view.namespace(shadow) is None else (await drop(admin, shadow))["left"]


def _signer(admin: Admin) -> Signer:
    assert admin.signer is not None
    return admin.signer


class DrillWorld(PassiveWorld):
    """One broker a region. pauses_s: between two steps of drills."""

    pauses_s = (0.0, 0.3)

    async def _start(self) -> None:
        self._ages: dict[str, StepAges] = {}
        self._clients: dict[BrokerRole, DrillClients] = {}
        """Each life of a broker has its own."""
        await super()._start()
        self.sim.machine(_DRILLER)
        self._begun = 0
        """The number of the newest drill."""
        self._driller_rng = self.sim.rng(_DRILLER)
        self._driller = asyncio.ensure_future(self.sim.call(_DRILLER, self._rehearse, limit_s=600.0))

    def _judge(self, gate: Gate) -> None:
        if gate.namespace == NAMESPACE:  # the shadow has a lease history of its own
            super()._judge(gate)

    async def on(self, region: str, call: Callable[[Admin], Coroutine[Any, Any, Any]]) -> Any:
        """Asks the region's broker, as another region would. Raises MetadataUnavailable where it does not answer."""
        (node,) = self.regions[region].brokers
        if not node.is_ready():
            raise MetadataUnavailable(f"{region} does not answer")
        try:
            broker = cast(BrokerRole, node.roles[0])
            if broker not in self._clients:
                self._clients[broker] = DrillClients(broker.runtime.clock, str, ssl.create_default_context)
            return await node.machine.ask(call, _admin(broker, self._clients[broker]), limit_s=_ANSWER_S)
        except TimeoutError as error:
            raise MetadataUnavailable(f"{region} does not answer") from error

    def _conductor(self, host: str = _DRILLER) -> tuple[MetaClient, Conductor]:
        """Whose steps those are: the driller's touch no namespace but the shadow."""
        machine = self.sim.machines[host]
        store = MetaClient(
            [f"{region.metadata.name}:{CONFIG_PORT}" for region in self.regions.values()],
            clock=machine.clock,
            rng=machine.rng,
        )
        view = _Policies(self)

        async def facts_of(region: str, namespace: str) -> dict[str, Any]:
            return cast(dict[str, Any], await self.on(region, lambda admin: facts_here(admin, namespace)))

        async def counts_of(region: str, namespace: str, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
            return cast(dict[str, Any], await self.on(region, lambda admin: counts_here(admin, namespace, what, given)))

        conductor = Conductor(
            store,
            view,
            facts_of=facts_of,
            counts_of=counts_of,
            wall_ms=machine.clock.wall_ms,
            ages=self._ages.setdefault(host, StepAges(machine.clock.monotonic)),
        )
        if host == _DRILLER:
            conductor.switching = _Watched(store, machine.clock.wall_ms)
        conductor.drill = Drill(
            _Shadows(self, ConfigAdmin(store)),
            conductor,
            view.namespace,
            facts_of,
            machine.clock.wall_ms,
            2.0,
            DrillSettings(latency_before_s=0.5, latency_more_ms_max=60_000.0),  # faults and their ends are slow
        )
        return store, conductor

    async def _step(self, *, begin: bool) -> Operation | None:
        """One step, by somebody who knows nothing of the one before. None: it did not get so far."""
        store, conductor = self._conductor()
        try:
            if begin:
                await conductor.begin(DRILL, NAMESPACE, self._driller_rng.choice(self.settings.regions), "sim")
            op, _ = await conductor.operation(NAMESPACE)
            self._begun = self._begun if op is None else op.id
            return op if op is None or not op.running or op.kind != DRILL else await conductor.advance(NAMESPACE)
        except HeliographError as error:
            self.trace(f"drill: {error}")
            return None
        finally:
            store.close()

    async def _rehearse(self) -> None:
        ended: dict[int, None] = {}
        while self._operating:
            op = await self._step(begin=True)
            if op is not None and op.kind == DRILL and not op.running and op.id not in ended:
                ended[op.id] = None
                self.counts["drilled"] += 1
                await self._look_at(op)
            await asyncio.sleep(self._driller_rng.uniform(*self.pauses_s))

    async def _converge(self) -> None:
        await super()._converge()
        await self._until("the driller has finished", lambda: self._driller.done(), _END_S)
        self._driller.result()
        await self.sim.call(_DRILLER, self._last, limit_s=2 * _END_S)

    async def _last(self) -> None:
        """What is under way ends; and where it had begun before everything was well, one more."""
        before = self._begun
        op = await self._to_its_end()
        if op.id <= before:
            op = await self._to_its_end()
        report = op.report["signed"]
        if (
            not report["passed"]
            or report["rpo"]["messages"]
            or report["audit"]["left"]
            or report["duplicates"]
            or report["audit"]["topics"] < 1
        ):
            raise Violation(f"a healthy world does not pass a drill: {report}")
        led = report["clients"]["pulsar"]
        if not led["measured"] or not 0 < led["acked"]["p50_s"] <= led["acked"]["max_s"] <= report["rto_s"]:
            raise Violation(f"clients were not led, or were not waited for: {report}")

    async def _to_its_end(self) -> Operation:
        deadline = asyncio.get_running_loop().time() + _END_S
        op: Operation | None = None
        while op is None or op.running:
            if asyncio.get_running_loop().time() > deadline:
                raise Violation(f"a drill does not end: {op}")
            found = await self._step(begin=op is None)
            op = op if found is None else found
            await asyncio.sleep(0.2)
        self.counts["drilled"] += 1
        await self._look_at(op)
        return op

    async def _look_at(self, op: Operation) -> None:
        """One that has ended, by whatever way."""
        if "signed" not in op.report:
            return
        if op.report["audit"]["found"].keys() & {"twice", "extra", "different"}:
            raise Violation(f"a drill finds what nobody did: {op.report['audit']}")
        signed = op.report["signed"]
        check(signed)
        store, _ = self._conductor()
        try:
            if await store.get(keys.namespace(shadow_of(op))) is not None:
                raise Violation(f"{shadow_of(op)} is still there")
            if not await self.on(
                self.settings.regions[0], lambda admin: _signer(admin).known(signed["signed_by"], signed["public_key"])
            ):
                raise Violation(f"nobody knows the key of {op.report['signed']}")
        except HeliographError as error:
            self.trace(f"drill: {error}")
        finally:
            store.close()


class _Policies:
    """What a conductor wants of the configuration's view."""

    def __init__(self, world: DrillWorld) -> None:
        self._world = world

    def region(self, name: str) -> RegionInfo:
        return self._world.regions[name].info()

    def namespace(self, name: str) -> NamespacePolicies | None:
        return NamespacePolicies(regions=self._world.settings.regions)


def _admin(broker: BrokerRole, clients: DrillClients | None = None) -> Admin:
    return Admin(
        region=broker.settings.region,
        ownership=broker.ownership,
        topics=broker.topics,
        links=broker.links,
        view=broker.view,
        config=ConfigAdmin(broker.config, broker.deferred),
        clock=broker.runtime.clock,
        step_ages=StepAges(broker.runtime.clock.monotonic),
        audit=broker.audit,
        version="sim",
        config_status=broker.config.status,
        leases=broker.leases,
        appends=broker.appends,
        drill_clients=clients,
        signer=Signer(broker.settings.region, broker.meta, broker.config, broker.runtime.rng),
    )
