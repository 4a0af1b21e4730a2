"""PassiveWorld: a whole instance with an active-passive namespace that is moved, failed over, and brought back under
load and faults.

Is: a World whose producers go wherever their messages are taken, an operator who switches, fails over by force, and
cancels, all at bad moments; and the lease history: at each confirmation the configuration calls that region the active
one. Processes are stopped (SIGSTOP), too, and go on. Isn't: the commands
(`tests/region_node/dr/operations/test_operation_steps.py`, `tests/heliograph/cli/regions/test_disaster_recovery.py`):
here everything below a broker is real.

    python -m geo_tests.sim.world --passive --seed 17 --trace

Once everything is healed: each acknowledged message is in every region exactly once, whichever regions confirmed what,
with both tails of every forced failover; messages that two regions published first are in the same order wherever both
have them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from geo_tests.sim.checkers import History, Violation
from geo_tests.sim.faults import Faults, Undo
from geo_tests.sim.loop import collect
from geo_tests.sim.pulsar_client import Client, Delivered, Producer
from geo_tests.sim.region import CONFIG_PORT, NAMESPACE
from geo_tests.sim.world import Verdict, World, WorldSettings
from global_config.node import ConfigNode
from heliograph.kv.metadata_client import MetaClient
from heliograph.model.configuration.leadership import DRAINING, FENCED, OPEN, Leadership, leadership
from heliograph.model.errors import HeliographError, NotAllowed, RegionPassive
from region_node.dr.leadership.leadership_changes import Switching, closing, reopened
from region_node.dr.leadership.write_gates import Gate

_OPERATOR = "operator"
_GIVE_UP_S = 6.0
CONDUCTED = 8
"""One of so many worlds is a ConductedWorld."""


class PassiveHistory(History):
    """Which region published a message first is not known to who sent it: it may have been sent to several."""

    def check_known(self, region: str, found: Delivered) -> None:
        if self.submitted.get((found.producer, found.sequence), ("", b""))[1] != found.payload:
            raise Violation(f"{region}: {found} was never submitted so")

    def _check_region(self, region: str, found: Sequence[Delivered]) -> None:
        places: dict[tuple[str, int], Delivered] = {}
        for item in found:
            self.check_known(region, item)
            if (known := places.get((item.producer, item.sequence))) is not None:
                raise Violation(f"{self.topic} in {region}: stored twice: {known} and {item}")
            places[item.producer, item.sequence] = item

    def _check_origin_order(self, regions: Mapping[str, Sequence[Delivered]]) -> None:
        """An alias is in each region where that one had it first: what both have of one origin is in one order."""
        self.check_common_order(regions)


class PassiveFaults(Faults):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        stopped: list[tuple[int, Callable[[], tuple[str, Undo] | None]]] = [
            (3, self._stop_broker),
            (2, self._stop_metadata),
        ]
        self.kinds += [
            (weight, kind)
            for weight, kind in stopped
            if not world.settings.kinds or kind.__name__.strip("_") in world.settings.kinds
        ]

    async def _watch_service(self) -> None:
        """A region that is not the active one serves nobody, and may be that for long."""


class PassiveWorld(World):
    everywhere = False

    def __init__(self, seed: int, settings: WorldSettings | None = None, trace: Any = None) -> None:
        super().__init__(seed, replace(settings or WorldSettings(), trims=False, durable=False), trace)
        self.histories = {topic: PassiveHistory(topic) for topic in self.topics}
        self.faults = PassiveFaults(self)
        self.counts: Counter[str] = Counter()
        self._operating = True
        self._operator_rng = self.sim.rng(_OPERATOR)

    def run(self) -> Verdict:
        original = Gate.leave

        def leave(gate: Gate, epoch: int, life: int) -> RegionPassive | None:
            refused = original(gate, epoch, life)
            if gate.record is not None:
                self.counts["confirmed" if refused is None else "not confirmed"] += 1
                if refused is None:
                    self._judge(gate)
            return refused

        Gate.leave = leave  # type: ignore[method-assign]
        try:
            verdict = super().run()
        finally:
            Gate.leave = original  # type: ignore[method-assign]
        verdict.kinds += [
            f"leadership: {what}"
            for what, count in sorted(self.counts.items())
            for _ in range(count if "confirm" not in what else 1)
        ]
        return verdict

    def _judge(self, gate: Gate) -> None:
        truth = self.truth()
        if truth is not None and truth.active != gate._writing.region:
            text = (
                f"a broker of {gate._writing.region} confirms, {truth.active} is the active region under epoch "
                f"{truth.epoch}"
            )
            self.sim.loop.fail(text, Violation(text))

    def truth(self) -> Leadership | None:
        """As the configuration has it."""
        found = self.configured(leadership(NAMESPACE))
        return None if found is None else Leadership.decode(found)

    def configured(self, key: str) -> bytes | None:
        """What stands there, as the configuration node knows it that is the furthest."""
        nodes = [
            role.node
            for region in self.regions.values()
            for role in region.metadata.roles
            if isinstance(getattr(role, "node", None), ConfigNode)
        ]
        machines = [node.service.machine for node in nodes if node is not None]
        found = max(machines, key=lambda machine: machine.index).get(key) if machines else None
        return None if found is None else found[0]

    # -- the run ------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await super()._start()
        self.sim.machine(_OPERATOR)
        await self.sim.call(_OPERATOR, self._begin, limit_s=60.0)
        self._operator = asyncio.ensure_future(self.sim.call(_OPERATOR, self._operate, limit_s=600.0))

    def _switching(self) -> tuple[MetaClient, Switching]:
        machine = self.sim.machines[_OPERATOR]
        store = MetaClient(
            [f"{region.metadata.name}:{CONFIG_PORT}" for region in self.regions.values()],
            clock=machine.clock,
            rng=machine.rng,
        )
        return store, Switching(store, lambda: 0)

    async def _begin(self) -> None:
        store, switching = self._switching()
        await self._sure(lambda: switching.begin(NAMESPACE, self.settings.regions[0], {}))
        store.close()

    async def _sure(self, act: Any) -> None:
        while True:
            try:
                await act()
            except NotAllowed:
                return
            except HeliographError:
                await asyncio.sleep(0.3)
                continue
            return

    async def _operate(self) -> None:
        """Switches and failovers at random moments, whatever has failed; some are given up half-way."""
        store, switching = self._switching()
        rng, loop = self._operator_rng, asyncio.get_running_loop()
        while self._operating:
            await asyncio.sleep(rng.uniform(0.5, 3.0))
            to, state = rng.choice(self.settings.regions), rng.choice((DRAINING, FENCED, FENCED))
            try:
                await switching.change(NAMESPACE, lambda old, to=to, state=state: closing(old, to, state, 0))  # type: ignore[misc]
                self.trace(f"operator: {state} to {to}")
                until = loop.time() + rng.choice((0.5, _GIVE_UP_S, _GIVE_UP_S))
                while loop.time() < until and self._operating:
                    new, _ = await switching.flip(NAMESPACE, to, regions=self.settings.regions)
                    if new is not None:
                        self.counts["failed over" if state == FENCED else "switched over"] += 1
                        self.trace(f"operator: {to} is active under epoch {new.epoch}")
                        break
                    await asyncio.sleep(0.2)
                else:
                    await switching.change(NAMESPACE, lambda old: reopened(old, 0))
                    self.counts["given up"] += 1
            except NotAllowed:
                pass
            except HeliographError:
                self.counts["operator cut off"] += 1
        await self._sure(lambda: switching.change(NAMESPACE, lambda old: reopened(old, 0)))
        await self._failback(switching)
        store.close()

    async def _failback(self, switching: Switching) -> None:
        """In the end the first region is the active one again, by a planned move."""
        first = self.settings.regions[0]
        while True:
            try:
                record, _ = await switching.get(NAMESPACE)
                if record.active == first and record.state == OPEN:
                    return
                if record.state == OPEN:
                    await switching.change(NAMESPACE, lambda old: closing(old, first, DRAINING, 0))
                if (await switching.flip(NAMESPACE, record.to or first, regions=self.settings.regions))[0] is not None:
                    self.counts["failed back"] += 1
            except HeliographError:
                pass
            await asyncio.sleep(0.3)

    def _producer(self, client: Client, topic: str, name: str, history: History) -> Producer:
        """It looks for the topic in any region; a receipt is that of the region which it is connected with."""
        made = super()._producer(client, topic, name, history)
        made.client = Client(
            [address for region in self.regions.values() for address in region.addresses()], client.rng
        )
        told = made.on_receipt

        def on_receipt(sequence: int, ledger: int, entry: int) -> None:
            assert made._connection is not None
            host: str = made._connection.transport.get_extra_info("peername")[0]
            history.submit(host.partition("-")[0], name, sequence, history.submitted[name, sequence][1])
            told(sequence, ledger, entry)

        made.on_receipt = on_receipt
        return made

    def _shown(self, name: str) -> str:
        """One region at a time publishes: one name is one producer."""
        return name

    async def _converge(self) -> None:
        self._operating = False
        await self._until("the operator has finished", lambda: self._operator.done(), 90.0)
        self._operator.result()
        await super()._converge()

    async def _check_coordinates(self, topic: str, found: dict[str, Sequence[Delivered]]) -> None:
        """A message that a client sent to two regions has a coordinate in each."""


def run_passive(seed: int, settings: WorldSettings | None = None, trace: Any = None) -> tuple[Verdict, Counter[str]]:
    """One world of CONDUCTED is operated by the real commands' conductor, and rehearsed: small, a broker a region."""
    from geo_tests.sim.conducted_world import ConductedWorld

    world = PassiveWorld(seed, settings, trace)
    if seed % CONDUCTED == CONDUCTED // 2:
        world = ConductedWorld(seed, replace(settings or WorldSettings(), brokers=1, bookies=2), trace)
    try:
        return world.run(), world.counts
    finally:
        collect()
