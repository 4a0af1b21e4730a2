"""Faults: what goes wrong in a simulated world, when, and how it is put right again.

Is: kinds of faults, drawn by the seed, each with its own end; `heal` ends them all. Isn't: what befalls the content of
disks (`disk_faults`), or a fault that the design does not claim to survive: more than one disk of a region gone at a
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import Violation
from geo_tests.sim.disk_faults import DiskFaults
from geo_tests.sim.disk_weather import DiskWeather
from geo_tests.sim.life_faults import LifeFaults
from geo_tests.sim.region import NAMESPACE
from geo_tests.sim.silence import silent_kinds
from geo_tests.sim.voter_faults import VoterFaults
from geo_tests.sim.wrong_clocks import WrongClocks
from heliograph.model.errors import HeliographError

if TYPE_CHECKING:
    from geo_tests.sim.region import Node, Region
    from geo_tests.sim.world import World

Undo = Callable[[], None]


class Faults:
    """The faults of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.sim.rng("faults")
        self._undo: dict[int, Undo] = {}
        self._count = 0
        self._disturbed_until: dict[str, float] = {}
        self._served: dict[str, float] = {}
        self.lives, self.clocks = LifeFaults(self), WrongClocks(self)
        self.kinds: list[tuple[int, Callable[[], tuple[str, Undo] | None]]] = [
            (5, self._cut_wan),
            (2, self._cut_wan_one_way),
            (2, self._cut_region_off),
            (2, self._reset_wan),
            (2, self._slow_wan),
            (4, self._kill_broker),
            (3, self._power_cut_broker),
            (3, self._kill_bookie),
            (3, self._power_cut_bookie),
            (3, self._power_cut_bookie_while_it_writes),
            (2, self._kill_two_bookies),
            (2, self._slow_disk),
            (1, self._failing_disk),
            (2, self._cut_broker_from_metadata),
            (2, self._cut_broker_from_bookie),
            (2, self._stop_broker),
            (1, self._stop_bookie),
            (3, self._wrong_clock),
            (2, self._restart_metadata),
            (1, self._power_cut_region),
            (2, self._drop_consumers),
            (2, self._reset_clients),
            (3, self._unload),
            (3, self._change_topology),
            (1, self._leave),
            *self.lives.kinds(),
            *self.clocks.kinds(),
        ]
        self.disks, self.voters = DiskFaults(world, self), VoterFaults(world, self)
        weather = [*DiskWeather(world, self).kinds(), *silent_kinds(self)]
        names = {kind.__name__ for _, kind in weather}
        if world.settings.weather:
            self.kinds += weather
            weather = []
        if wanted := world.settings.kinds:
            all_kinds = [
                *self.kinds,
                *weather,
                *self.disks.kinds,
                *self.voters.kinds,
                *self.lives.rare(),
                *self.clocks.rare(),
            ]  # disks are lost where that is named (docs/failures.md)
            self.kinds = [(weight, kind) for weight, kind in all_kinds if kind.__name__.strip("_") in wanted]
        self.weather = any(kind.__name__ in names for _, kind in self.kinds)
        """Whether disks may fill and fail here, and machines fall silent."""

    async def run(self, duration_s: float, count: int) -> None:
        """`count` faults at random times within `duration_s`; returns when that time is over."""
        loop = asyncio.get_running_loop()
        for _ in range(count):
            loop.call_later(self.rng.uniform(0.05, 0.85) * duration_s, self._strike)
        for kind in (*self.lives.drawn(), *self.clocks.drawn()):
            loop.call_later(0.3 * duration_s, self._begin, kind)
        watching = asyncio.ensure_future(self._watch_service())
        await asyncio.sleep(duration_s)
        watching.cancel()

    async def heal(self) -> None:
        """Ends what still lasts; every machine runs again."""
        for number in list(self._undo):
            self._end(number)
        for node in self.world.nodes():
            for platter in node.machine.platters().values():
                platter.fail_syncs = False
                platter.cancel_cut()
            node.revive()
        await self.disks.made_good()
        await self.voters.made_good()

    def served(self, region: str) -> None:
        """A producer of `region` got a receipt."""
        self._served[region] = self.world.sim.now()

    def disturbed(self, region: str, for_s: float) -> None:
        """`region` has a fault of its own: for a while, nobody expects anything of it."""
        self._disturbed_until[region] = max(self._disturbed_until.get(region, 0.0), self.world.sim.now() + for_s)

    async def _watch_service(self) -> None:
        """A region whose own machines are well serves publishes, whatever happens to the WAN."""
        while True:
            await asyncio.sleep(0.5)
            now = self.world.sim.now()
            for region in self.world.regions:
                waiting = [p for name, p in self.world.producers if name == region and p.pending]
                if (
                    not waiting
                    or now < self._disturbed_until.get(region, 0.0)
                    or not self.world.reconfiguration.serves(region)
                ):
                    self._served[region] = now
                elif now - self._served.get(region, now) > SERVES_WITHIN_S:
                    text = (
                        f"{region} serves nobody, though nothing is wrong with it: {waiting[0].name} waits, "
                        f"{waiting[0].last_error}"
                    )
                    self.world.sim.loop.fail(text, Violation(text))

    def _strike(self) -> None:
        (kind,) = self.rng.choices([kind for _, kind in self.kinds], [weight for weight, _ in self.kinds])
        self._begin(kind)

    def _begin(self, kind: Callable[[], tuple[str, Undo] | None]) -> None:
        done = kind()
        if done is None:
            return
        text, undo = done
        self._count += 1
        number = self._count
        self._undo[number] = undo
        self.world.verdict.faults.append(text)
        self.world.verdict.kinds.append(kind.__name__.strip("_").replace("_", " "))
        self.world.trace(f"fault {number}: {text}")
        self.world.sim.loop.call_later(
            self.rng.choice((0.3, 1.0, 2.0, 4.0, 6.0)) * self.rng.uniform(0.7, 1.3), self._end, number
        )

    def _end(self, number: int) -> None:
        undo = self._undo.pop(number, None)
        if undo is not None:
            self.world.trace(f"fault {number} ends")
            undo()

    # -- the WAN --------------------------------------------------------------------------------------------------

    def _pair(self) -> tuple[str, str]:
        a, b = self.rng.sample(sorted(self.world.regions), 2)
        return a, b

    def _cut_wan(self) -> tuple[str, Undo]:
        a, b = self._pair()
        network = self.world.sim.network
        network.cut(a, b)
        return f"cut {a}-{b}", lambda: network.heal(a, b)

    def _cut_wan_one_way(self) -> tuple[str, Undo]:
        a, b = self._pair()
        network = self.world.sim.network
        network.cut(a, b, one_way=True)
        return f"cut {a}->{b}", lambda: network.heal(a, b)

    def _cut_region_off(self) -> tuple[str, Undo]:
        a = self.rng.choice(sorted(self.world.regions))
        others = [b for b in self.world.regions if b != a]
        network = self.world.sim.network
        for b in others:
            network.cut(a, b)

        def undo() -> None:
            for b in others:
                network.heal(a, b)

        return f"cut {a} off", undo

    def _reset_wan(self) -> tuple[str, Undo]:
        a, b = self._pair()
        self.world.sim.network.reset(a, b)
        return f"reset {a}-{b}", lambda: None

    def _slow_wan(self) -> tuple[str, Undo]:
        a, b = self._pair()
        network = self.world.sim.network
        network.latency(a, b, 0.15, 0.6)
        return f"slow {a}-{b}", lambda: network.latency(a, b, 0.04, 0.05)

    # -- machines -------------------------------------------------------------------------------------------------

    def region(self) -> Region:
        return self.world.regions[self.rng.choice(sorted(self.world.regions))]

    def _broker(self) -> Node | None:
        running = [n for n in self.region().brokers if n.machine.running]
        return self.rng.choice(running) if running else None

    def _bookie(self) -> Node | None:
        """One, where no other of its region is away."""
        bookies = self.region().bookies
        return self.rng.choice(bookies) if all(n.machine.running for n in bookies) else None

    def _away(self, node: Node, what: str) -> tuple[str, Undo]:
        self.disturbed(node.region.name, 20.0)
        return f"{what} {node.name}", node.revive

    def _kill_broker(self) -> tuple[str, Undo] | None:
        if (node := self._broker()) is None:
            return None
        node.kill()
        return self._away(node, "kill")

    def _power_cut_broker(self) -> tuple[str, Undo] | None:
        if (node := self._broker()) is None:
            return None
        node.power_cut()
        return self._away(node, "power cut")

    def _kill_bookie(self) -> tuple[str, Undo] | None:
        if (node := self._bookie()) is None:
            return None
        node.kill()
        return self._away(node, "kill")

    def _power_cut_bookie(self) -> tuple[str, Undo] | None:
        if (node := self._bookie()) is None:
            return None
        node.power_cut()
        return self._away(node, "power cut")

    def _power_cut_bookie_while_it_writes(self) -> tuple[str, Undo] | None:
        if (node := self._bookie()) is None:
            return None
        platters = node.machine.platters()
        platter = platters[self.rng.choice(sorted(platters))]
        platter.cut_after(self.rng.randrange(1, 30))

        def undo() -> None:
            platter.cancel_cut()
            node.revive()

        self.disturbed(node.region.name, 25.0)
        return f"power cut of {node.name} while it writes", undo

    def _kill_two_bookies(self) -> tuple[str, Undo] | None:
        """Too few are left for the write quorum: appends wait, and fail after a while, on links that stay open."""
        region = self.region()
        if not all(n.machine.running for n in region.bookies):
            return None
        chosen = self.rng.sample(region.bookies, 2)
        for node in chosen:
            node.kill()
        self.disturbed(region.name, 20.0)

        def undo() -> None:
            for node in chosen:
                node.revive()

        return f"kill {chosen[0].name} and {chosen[1].name}", undo

    def _slow_disk(self) -> tuple[str, Undo] | None:
        if (node := self._bookie()) is None:
            return None
        platters = list(node.machine.platters().values())
        before = [p.sync_s for p in platters]
        for platter in platters:
            platter.sync_s = (0.05, 0.5)

        def undo() -> None:
            for platter, usual in zip(platters, before, strict=True):
                platter.sync_s = usual

        self.disturbed(node.region.name, 15.0)
        return f"slow disk of {node.name}", undo

    def _failing_disk(self) -> tuple[str, Undo] | None:
        """Syncs fail; the disk is exchanged for its own content, with another process on it."""
        if (node := self._bookie()) is None:
            return None
        for platter in node.machine.platters().values():
            platter.fail_syncs = True

        def undo() -> None:
            node.power_cut()
            for platter in node.machine.platters().values():
                platter.fail_syncs = False
            node.revive()

        return self._away(node, "failing disk of")[0], undo

    def _cut_broker_from_metadata(self) -> tuple[str, Undo] | None:
        """The zombie: it loses its lease, while clients and bookies still hear it."""
        if (node := self._broker()) is None:
            return None
        return self._cut_machines(node, node.region.metadata)

    def _cut_broker_from_bookie(self) -> tuple[str, Undo] | None:
        if (node := self._broker()) is None:
            return None
        return self._cut_machines(node, self.rng.choice(node.region.bookies))

    def _cut_machines(self, a: Node, b: Node) -> tuple[str, Undo]:
        network = self.world.sim.network
        one_way = self.rng.random() < 0.3
        network.cut(a.name, b.name, one_way=one_way)
        self.disturbed(a.region.name, 25.0)
        return f"cut {a.name}{'->' if one_way else '-'}{b.name}", lambda: network.heal(a.name, b.name)

    def _stop(self, node: Node) -> tuple[str, Undo]:
        """SIGSTOP, and on again: it has heard nothing meanwhile, and believes what it believed."""
        life = node.machine.stop()
        self.disturbed(node.region.name, 20.0)

        def undo() -> None:
            if life is not None:
                self.world.sim.loop.go_on(life)

        return f"stop {node.name}", undo

    def _stop_broker(self) -> tuple[str, Undo] | None:
        return None if (node := self._broker()) is None else self._stop(node)

    def _stop_bookie(self) -> tuple[str, Undo] | None:
        return None if (node := self._bookie()) is None else self._stop(node)

    def _stop_metadata(self) -> tuple[str, Undo] | None:
        node = self.region().metadata
        return self._stop(node) if node.machine.running else None

    def _wrong_clock(self) -> tuple[str, Undo]:
        return self.clocks.wrong_clock()

    def _restart_metadata(self) -> tuple[str, Undo] | None:
        node = self.region().metadata
        if not node.machine.running:
            return None
        if self.rng.random() < 0.5:
            node.kill()
        else:
            node.power_cut()
        self.world.sim.loop.call_later(self.rng.uniform(0.1, 3.0), node.revive)
        return self._away(node, "restart")

    def _power_cut_region(self) -> tuple[str, Undo] | None:
        """All of a region at once: what was synced is there."""
        region = self.region()
        for node in region.nodes:
            if node.machine.running:
                node.power_cut()
        self.disturbed(region.name, 30.0)

        def undo() -> None:
            for node in region.nodes:
                node.revive()

        return f"power cut of {region.name}", undo

    # -- by hand --------------------------------------------------------------------------------------------------

    def _unload(self) -> tuple[str, Undo] | None:
        """A topic is closed; or its bundle is given up; or handed to another broker of the region."""
        if (node := self._broker()) is None or not node.is_ready():
            return None
        role: Any = node.roles[0]
        owned = sorted(bundle for bundle in role.ownership.owned() if bundle[0] == NAMESPACE)
        if not owned:
            return None
        namespace, bundle = self.rng.choice(owned)
        others = [n.roles[0].ownership.record.broker for n in node.region.brokers if n is not node and n.is_ready()]  # type: ignore[attr-defined]
        way = self.rng.choice(("topic", "bundle", "move") if others else ("topic", "bundle"))
        match way:
            case "topic":
                topic = self.rng.choice(self.world.topics)
                self._by_hand(node, role.topics.unload, topic)
                return f"unload {topic} on {node.name}", lambda: None
            case "bundle":
                self._by_hand(node, role.ownership.unload_bundle, namespace, bundle)
                return f"unload bundle {bundle} of {node.name}", lambda: None
        to = self.rng.choice(others)
        self._by_hand(node, role.ownership.transfer, namespace, bundle, to)
        return f"move bundle {bundle} of {node.name} to {to}", lambda: None

    def _by_hand(self, node: Node, call: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """As an operator's command, which may be refused."""

        async def tried() -> None:
            try:
                await call(*args)
            except HeliographError as error:
                self.world.trace(f"refused on {node.name}: {error}")

        task = node.machine.run(lambda: asyncio.ensure_future(tried()))
        task.add_done_callback(self.world.sim.report)

    def _change_topology(self) -> tuple[str, Undo]:
        """It stays, also when everything else is healed."""
        return f"the namespace becomes a {self.world.reconfiguration.new_ways(self.rng)}", lambda: None

    def _leave(self) -> tuple[str, Undo] | None:
        """A region is taken out of the namespace, and comes back."""
        reconfiguration = self.world.reconfiguration
        if len(reconfiguration.wish.members) < len(self.world.regions):
            return None
        region = self.rng.choice(sorted(self.world.regions))
        return f"{region} leaves: a {reconfiguration.leave(region)}", lambda: self.world.trace(
            f"{region} comes back: a {reconfiguration.come(region)}"
        )

    def _reset_clients(self) -> tuple[str, Undo]:
        """Producers come back while the broker still waits for what they sent, and send it again."""
        region = self.region()
        for node in region.brokers:
            self.world.sim.network.reset(f"{region.name}-client", node.name)
        return f"reset of {region.name}'s clients", lambda: None

    def _drop_consumers(self) -> tuple[str, Undo]:
        for _, consumer in self.world.consumers:
            if self.rng.random() < 0.5:
                consumer.drop()
        return "consumers lose their connections", lambda: None


SERVES_WITHIN_S = 6.0
