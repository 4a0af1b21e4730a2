"""UnattendedWorld: a whole instance whose active-passive namespace fails over by itself: nobody gives a command but the
one that counts the tail of a region that is back.

Is: a ConductedWorld (each message counted, each confirmation judged, somebody rehearses all the time) in which the
active region falls silent again and again, for longer than is waited for, or for less; each broker, in each of its
lives, has the real `AutomaticFailover`. Isn't: HTTP between regions.
Between a move and the next one by itself lies the hold, in true time.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from geo_tests.sim.checkers import Violation
from geo_tests.sim.conducted_world import ConductedWorld
from geo_tests.sim.drill_world import _admin, _Policies
from geo_tests.sim.region import NAMESPACE, Node
from heliograph.model.errors import NotAllowed
from region_node.dr.operations.automatic_failover import AutomaticFailover
from region_node.dr.operations.automatic_policy import BY, Automatic, automatic
from region_node.dr.operations.operation import FAILOVER, REJOIN, Operation, StepAges, operation_key
from region_node.dr.operations.operation_steps import Conductor
from region_node.dr.operations.silent_regions import SilentRegions
from region_node.faces.admin.calls.region_facts import facts_here
from region_node.process.broker_role import BrokerRole

AFTER_S, HOLD_S = 4.0, 120.0
"""The leases of a world last for 2 s."""
_SILENT_S = (3.0, 16.0, 16.0)
_TRUTH_S = 0.1


class UnattendedWorld(ConductedWorld):
    """One broker a region."""

    async def _start(self) -> None:
        await super()._start()
        for region in self.regions.values():
            for node in region.brokers:
                node.on_started = self._attend
                if node.is_ready():
                    node.machine.run(self._attend, node)

    def _attend(self, node: Node) -> None:
        """The broker's life has begun: it fails over by itself what is to."""
        broker = cast(BrokerRole, node.roles[0])
        clock, own = broker.runtime.clock, broker.settings.region
        admin, ages = _admin(broker), StepAges(broker.runtime.clock.monotonic)

        async def facts_of(region: str, namespace: str) -> dict[str, Any]:
            if region == own:
                return await facts_here(admin, namespace)
            return cast(dict[str, Any], await self.on(region, lambda there: facts_here(there, namespace)))

        async def nobody(*_: Any) -> dict[str, Any]:
            raise NotAllowed("nobody counts here")

        made = AutomaticFailover(
            broker.leases,
            SilentRegions(broker.leases, broker.links.incoming, region=own, clock=clock),
            lambda store: Conductor(
                store, _Policies(self), facts_of=facts_of, counts_of=nobody, wall_ms=clock.wall_ms, ages=ages
            ),
            region=own,
            regions_of=lambda _: self.settings.regions,
            clock=clock,
            told=lambda event: self.counts.update([str(event["event"])]),
        )

        async def start() -> None:
            owners = (getattr(stop, "__self__", None) for stop in broker.stops)
            (mute,) = (owner for owner in owners if isinstance(owner, AutomaticFailover))
            await mute.stop()  # without an admin interface it says only what it hears
            await made.start()

        task = asyncio.get_running_loop().create_task(start())
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())

    async def _operate(self) -> None:
        store, _ = self._switching()
        wanted = Automatic(after_s=AFTER_S, hold_s=HOLD_S)
        await self._sure(lambda: store.put(automatic(NAMESPACE), wanted.encode()))
        watching = asyncio.get_running_loop().create_task(self._watch())
        while self._operating:
            await asyncio.sleep(self._operator_rng.uniform(1.0, 4.0))
            await self._silence()
            await self._rejoin()
        await self._sure(lambda: store.delete(automatic(NAMESPACE)))
        store.close()
        await self._finish()
        watching.cancel()

    async def _silence(self) -> None:
        """The active region is heard by nobody, and hears nobody."""
        truth, network = self.truth(), self.sim.network
        if truth is None:
            return
        pairs = [(truth.active, other) for other in self.settings.regions if other != truth.active]
        for one, other in pairs:
            network.cut(one, other)
        self.trace(f"{truth.active} falls silent")
        await asyncio.sleep(self._operator_rng.choice(_SILENT_S))
        network.heal_all(pairs)
        self.counts["fell silent"] += 1

    async def _rejoin(self) -> None:
        """What a failover by itself left behind is counted, as an operator would have it counted."""
        op = await self._ask()
        if op is not None and op.kind == FAILOVER and op.by == BY and not op.running:
            await self._conduct(REJOIN, op.source, 8.0)

    async def _watch(self) -> None:
        """Who moved it, and when."""
        loop, epoch, moved_at = asyncio.get_running_loop(), 1, float("-inf")
        while True:
            await asyncio.sleep(_TRUTH_S)
            truth, op = self.truth(), self._last_operation()
            if truth is None or truth.epoch <= epoch:
                continue
            if by_itself := op is not None and op.by == BY:
                self.counts["moved by itself"] += 1
            self.trace(f"{truth.active} is active under epoch {truth.epoch}")
            stayed_s, epoch, moved_at = loop.time() - moved_at, truth.epoch, loop.time()
            if by_itself and stayed_s < HOLD_S - 2 * _TRUTH_S:
                text = f"it was moved by itself {stayed_s:.1f} s after a move, and is to stay: {truth}"
                self.sim.loop.fail(text, Violation(text))

    def _last_operation(self) -> Operation | None:
        """The operation under way, or the last, as the configuration has it."""
        found = self.configured(operation_key(NAMESPACE))
        return None if found is None else Operation.decode(found)
