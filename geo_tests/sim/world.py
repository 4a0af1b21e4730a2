"""World: a whole instance in one process on virtual time: regions from production's composition, clients, faults,
checkers.

Is: level 2 of the simulations. Isn't: a model; every role is the one that production builds, on the simulator's loop,
network, and disks.

    python -m geo_tests.sim.world --seed 17 --trace      # replays one seed and shows what happened when

A run: the regions start and are provisioned through the global configuration; named producers publish in every region,
durable subscriptions consume; meanwhile faults come (`faults`); then everything heals, and within CONVERGE_S the links
must drain, every producer have its receipts, and readers from the earliest message find in every region what `checkers`
demand. `probes` look into the living brokers all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from geo_tests.sim.auditing import EVERY, Audits
from geo_tests.sim.checkers import History, Violation
from geo_tests.sim.faults import Faults
from geo_tests.sim.group_checks import GroupChecks
from geo_tests.sim.loop import collect
from geo_tests.sim.probes import Probes
from geo_tests.sim.pulsar_client import SHARED, Client, Consumer, Delivered, Producer, Reader
from geo_tests.sim.reconfiguration import Reconfiguration
from geo_tests.sim.region import NAMESPACE, Node, Region
from geo_tests.sim.simulation import Simulation
from geo_tests.sim.stories import KINDS, Stories
from geo_tests.sim.stories import drawn as stories_drawn
from geo_tests.sim.trimming import TrimmedHistory
from replicator.log.coordinate_lookup import coordinate_of, position_of
from storage.ledger.repair.lost_bookies import AutoRecoverySettings

START_S = 40.0
CONVERGE_S = 60.0
SERVE_S = 12.0
"""A region whose own machines are well serves a publish within this, whatever the WAN does."""
CITIES = ("us", "eu", "ap", "sa", "af")
LATENCIES_S = {
    ("us", "eu"): 0.040,
    ("us", "ap"): 0.075,
    ("us", "sa"): 0.055,
    ("us", "af"): 0.090,
    ("eu", "ap"): 0.100,
    ("eu", "sa"): 0.095,
    ("eu", "af"): 0.060,
    ("ap", "sa"): 0.140,
    ("ap", "af"): 0.110,
    ("sa", "af"): 0.120,
}
TRIMS = 0.2
"""The part of worlds that keep nothing, where their settings do not say which do."""
AGES = 0.3
"""The part of the others whose topics delete by time, where their settings do not say which regions there are."""
DURABLE = 0.25
"""The part of those which neither keep nothing nor age, whose receipts mean two regions."""
COUNTS = (3, 3, 3, 3, 4, 4, 4, 5, 5, 5)
"""How many regions a world has whose settings do not say which: one of these, by its seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSettings:
    """What one run holds. `faults`: how many, in `chaos_s` virtual seconds."""

    regions: tuple[str, ...] = ()
    """Empty: three to five, by the seed."""
    bookies: int = 3
    voters: int = 1
    """Of the metadata, per region."""
    brokers: int = 2
    topics: int = 2
    producers: int = 1
    """Per region and topic."""
    messages: int = 48
    """Per producer."""
    chaos_s: float = 10.0
    faults: int = 6
    kinds: tuple[str, ...] = ()
    """Names of the kinds of faults that there are; empty: all."""
    replicated: bool = False
    """The subscription is replicated, and its consumers move from region to region: together they consume
    everything.
    """
    trims: bool | None = None
    """Retention is 0, and nothing is kept for a region that leaves. None: by the seed, where the regions are, too."""
    stories: tuple[str, ...] | None = None
    """Names of what goes on beside all else (`stories`). None: by the seed, where the regions are, too."""
    ages: bool | None = None
    """Topics have times to live and a retention that are longer than the world, so that nothing may go by them
    (`wrong_clocks`). None: by the seed, where the regions are, too.
    """
    durable: bool | None = None
    """Receipts mean two regions, or are on a list (`durability_reports`). None: by the seed, where the regions are."""
    late_s: float = 0.0
    """So long into the faults the clients of the last topic begin, and so the topic."""
    weather: bool = False
    """Disks fill, fail, and rot, and machines and regions fall silent, beside all else."""
    auto_recovery: AutoRecoverySettings = field(default_factory=AutoRecoverySettings)


WEATHER = WorldSettings(weather=True, faults=9)
"""Half as many faults again: two of five are of the weather."""
LOST_DISKS = WorldSettings(
    faults=5,
    kinds=("wipe_bookie", "unmount_bookie", "roll_bookie_back", "cut_wan", "kill_broker", "unload"),
    auto_recovery=AutoRecoverySettings(abandoned_after_s=30.0),
)
"""Disks of bookies come back empty, or as they were. A ledger that was made, and that no topic names as nothing came to
it before the power went, lacks a copy until it is abandoned.
"""
THREE_VOTERS = WorldSettings(
    voters=3,
    faults=8,
    kinds=(
        "kill_voter",
        "power_cut_voter",
        "stop_voter",
        "cut_voter_off",
        "wipe_voter",
        "unmount_voter",
        "roll_voter_back",
    ),
)
"""Each region has three metadata voters; what befalls one of them, and its disk."""


@dataclass
class Verdict:
    """What a run was: for the soak's statistics."""

    seed: int
    regions: int = 0
    messages: int = 0
    faults: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    sort: str = ""
    """What kind of world it is: those of one sort draw from the same kinds of faults."""
    audited: int = 0
    """Topics and regions in which an audit looked at everything, and found nothing that nobody did."""
    callbacks: int = 0
    transactions: int = 0
    """Those of which the clients know the end."""
    reports: Counter[str] = field(default_factory=Counter)
    """How often something that the product says of itself was compared with the truth, by its kind."""


class World:
    """One run. Everything follows from the seed."""

    everywhere = True
    """Clients publish in every region."""

    def __init__(
        self, seed: int, settings: WorldSettings | None = None, trace: Callable[[str], None] | None = None
    ) -> None:
        self.sim = Simulation(seed)
        self._draws = settings is None or not settings.regions
        self.seed, self.settings = seed, drawn(settings or WorldSettings(), self.sim.rng("regions"))
        self.rng = self.sim.rng("world")
        self._trace = trace
        self.topics = [f"persistent://{NAMESPACE}/topic-{i}" for i in range(self.settings.topics)]
        self.trimmings = {topic: TrimmedHistory(topic, self) for topic in self.topics if self.settings.trims}
        self.histories = {topic: self.trimmings.get(topic) or History(topic) for topic in self.topics}
        self.regions: dict[str, Region] = {}
        self.producers: list[tuple[str, Producer]] = []
        self.consumers: list[tuple[str, Consumer]] = []
        self.groups = GroupChecks(self)
        self.faults = Faults(self)
        self.probes = Probes(self)
        self.audits = Audits(self)
        self.stories = Stories(self, self._stories())
        self.reconfiguration = Reconfiguration(self, self.settings.regions)
        self.verdict = Verdict(seed, len(self.settings.regions), sort=self.sort())
        self.publishing = True

    def _draws_stories(self) -> bool:
        settings = self.settings
        return self._draws and settings.stories is None and self._may_have_stories()

    def _may_have_stories(self) -> bool:
        return self.everywhere and not (self.settings.trims or self.settings.replicated)

    def _stories(self) -> tuple[str, ...]:
        if not self._may_have_stories():
            return ()
        return stories_drawn(self.sim.rng("stories")) if self._draws_stories() else self.settings.stories or ()

    def trace(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.sim.now():10.4f}  {text}")

    def at_client(self, region: str, call: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> asyncio.Task[Any]:
        """Runs it on the region's client machine; what it raises ends the world."""
        task = self.sim.machines[f"{region}-client"].run(_task, call, *args)
        task.add_done_callback(self.sim.report)
        return task

    def sort(self) -> str:
        """As `Verdict.sort`."""
        settings = self.settings
        if settings.kinds:
            return f"of {', '.join(settings.kinds)}"
        names = [name for name in ("trims", "ages", "durable", "weather") if getattr(settings, name)]
        return ", ".join(names + ["spoilt"] * (self.seed % EVERY == 0)) or "plain"

    def kinds(self) -> set[str]:
        """The names of the kinds of faults that it draws from."""
        kinds = [kind for _, kind in (*self.faults.kinds, *(() if self.settings.kinds else self.faults.lives.rare()))]
        names = {kind.__name__.strip("_").replace("_", " ") for kind in kinds}
        return names | set(KINDS) if self._draws_stories() else names

    def run(self) -> Verdict:
        """Raises Violation, or SimFailure; the seed is noted on it."""
        began = time.process_time()
        try:
            self.sim.run(self._main(), limit_s=START_S + self.settings.chaos_s + 4 * CONVERGE_S)
        finally:
            self.sim.close()
        self.verdict.virtual_s, self.verdict.callbacks = self.sim.now(), self.sim.loop.callbacks_run
        self.verdict.cpu_s = time.process_time() - began
        return self.verdict

    def nodes(self) -> list[Node]:
        return [node for region in self.regions.values() for node in region.nodes]

    # -- the run --------------------------------------------------------------------------------------------------

    async def _main(self) -> None:
        await self._start()
        clients = self._start_clients()
        probing = asyncio.ensure_future(self.probes.run())
        replicating = asyncio.ensure_future(self._replicate())
        await self.faults.run(self.settings.chaos_s, self.settings.faults)
        self.trace("heal")
        await self.faults.heal()
        await self._converge()
        await self.stories.finish()
        await self.faults.lives.finish()
        found = await self._read_everything()
        for topic, history in self.histories.items():
            history.check(found[topic])
            if not self.settings.replicated:
                history.check_consumed(found[topic])
            await self._check_coordinates(topic, found[topic])
        for trimmed in self.trimmings.values():
            await trimmed.check_lookups()
        await self.audits.run(found)
        probing.cancel()
        replicating.cancel()
        await self.probes.final()
        await self.groups.final()
        for _, producer in self.producers:
            producer.close()
        for _, consumer in self.consumers:
            consumer.close()
        await asyncio.gather(*clients)
        self.verdict.messages = sum(len(h.acknowledged) for h in self.histories.values())

    async def _start(self) -> None:
        names = self.settings.regions
        for (a, b), one_way in LATENCIES_S.items():
            if not {a, b} <= set(names):
                continue
            self.sim.network.latency(a, b, one_way * 0.95, one_way * 1.15)
        for number, name in enumerate(names, 1):
            self.regions[name] = Region(
                self,
                name,
                number,
                names,
                bookies=self.settings.bookies,
                brokers=self.settings.brokers,
                voters=self.settings.voters,
            )
            if self.settings.voters > 1:
                self.groups.watch(self.regions[name])
        self.stories.prepare()
        for region in self.regions.values():
            region.start_metadata()
        await self.regions[names[0]].provision(self.regions)
        for region in self.regions.values():
            region.start_data()
        await self._until("brokers are up", lambda: all(node.ready for node in self.nodes()), START_S)
        self.trace("started")

    def _start_clients(self) -> list[asyncio.Task[Any]]:
        tasks: list[asyncio.Task[Any]] = []
        for region in self.regions.values():
            machine = self.sim.machine(f"{region.name}-client", zone=region.name)
            machine.start(_idle)
            for number, topic in enumerate(self.topics):
                history = self.histories[topic]
                late_s = self.settings.late_s if number == len(self.topics) - 1 else 0.0
                for index in range(self.settings.producers):
                    name = f"{region.name}-{number}-{index}"
                    rng = self.sim.rng(name)
                    client = Client(region.addresses(), rng)
                    producer = machine.run(self._producer, client, topic, name, history)
                    self.producers.append((region.name, producer))
                    tasks += [
                        machine.run(_later, late_s, producer.run),
                        machine.run(_later, late_s, self._publish, region.name, producer, history, rng),
                    ]
                consumer = machine.run(
                    self._consumer,
                    Client(region.addresses(), self.sim.rng(f"{region.name}-{number}-c")),
                    topic,
                    region.name,
                    history,
                )
                self.consumers.append((region.name, consumer))
                if not self.settings.replicated:
                    tasks.append(machine.run(_later, late_s, consumer.run))
        self.stories.begin()
        if self.settings.replicated:
            tasks += [asyncio.ensure_future(self._relay(topic)) for topic in self.topics]
        for task in tasks:
            task.add_done_callback(self.sim.report)
        return tasks

    async def _relay(self, topic: str) -> None:
        """Consumers move from region to region: one at a time, the last one stays."""
        turns = [(region, consumer) for region, consumer in self.consumers if consumer.topic == topic]
        self.rng.shuffle(turns)
        for index, (region, consumer) in enumerate(turns):
            self.trace(f"{topic} is consumed in {region}")
            running = self.sim.machines[f"{region}-client"].run(_task, consumer.run)
            if index < len(turns) - 1:
                await asyncio.sleep(self.settings.chaos_s * self.rng.uniform(0.2, 0.5))
                consumer.close()
            await running

    def _producer(self, client: Client, topic: str, name: str, history: History) -> Producer:
        def on_receipt(sequence: int, ledger: int, entry: int) -> None:
            history.acknowledge(name, sequence, ledger, entry)
            self.probes.durability.receipt(topic, name.split("-")[0], (ledger, entry))
            self.faults.served(name.split("-")[0])
            self.trace(f"receipt {name} {sequence} at {ledger}:{entry}")

        return Producer(client, topic, name, on_receipt, shown=self._shown(name))

    def _shown(self, name: str) -> str:
        """Half of the producers have the name that those of the other regions have: one program, deployed in each."""
        shared = SHARED + name.partition("-")[2]
        return shared if self.sim.rng(shared).random() < 0.5 else name

    def _consumer(self, client: Client, topic: str, region: str, history: History) -> Consumer:
        def on_message(delivered: Delivered) -> None:
            history.consume(region, delivered)

        return Consumer(client, topic, "sub", on_message)

    async def _publish(self, region: str, producer: Producer, history: History, rng: random.Random) -> None:
        """Bursts and pauses, over the time of the faults."""
        sequence, count = 0, self.settings.messages
        pace = self.settings.chaos_s / count
        while sequence < count:
            burst = rng.choice((1, 1, 1, 2, 5, 20))
            for _ in range(min(burst, count - sequence)):
                payload = f"{producer.name}:{sequence}:".encode() + bytes([sequence % 256]) * rng.choice(
                    (5, 50, 200, 1000)
                )
                history.submit(region, producer.name, sequence, payload)
                while not producer.send(sequence, payload):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                sequence += 1
            await asyncio.sleep(pace * burst * rng.uniform(0.2, 1.4))

    async def _converge(self) -> None:
        """The admin's last wish holds, every producer has its receipts, and every region all of every other."""
        await self._until("the namespace is as the admin wants it", self.reconfiguration.settled, CONVERGE_S)
        await self._until("every producer has its receipts", self._all_acknowledged, CONVERGE_S)
        self.publishing = False
        await self._until("every region has everything", self._consumed_everywhere, CONVERGE_S)

    def _all_acknowledged(self) -> str:
        lacking = []
        for topic, history in self.histories.items():
            expected = self.settings.messages * self.settings.producers * len(self.regions)
            if len(history.acknowledged) < expected:
                lacking.append(f"{topic}: {len(history.acknowledged)} of {expected}")
        if not lacking:
            return ""
        stuck = [f"{p.name}: {len(p.pending)} pending, {p.last_error}" for _, p in self.producers if p.pending]
        return "; ".join(lacking + stuck)

    async def _read_everything(self) -> dict[str, dict[str, Sequence[Delivered]]]:
        return {topic: {region: await self.read(topic, region) for region in self.regions} for topic in self.topics}

    async def read(self, topic: str, region: str) -> Sequence[Delivered]:
        """All that a reader finds there."""
        client = Client(self.regions[region].addresses(), self.sim.rng(f"reader-{region}-{topic}"))
        return await self.sim.call(f"{region}-client", Reader(client, topic).read_all)

    async def _replicate(self) -> None:
        """What a client's flag does, wherever the subscription is by now."""
        while self.settings.replicated:
            for _, _, node, log in self.probes.owners():
                if "sub" in log.ledger.cursors:
                    node.machine.run(log.subscriptions.enable, "sub")
            await asyncio.sleep(0.2)

    async def _check_coordinates(self, topic: str, found: dict[str, Sequence[Delivered]]) -> None:
        """A message's coordinate is the same wherever it is asked for, and leads to its copy in every region."""
        logs = {region: (node, log) for region, name, node, log in self.probes.owners() if name == topic}
        places = {
            region: {(d.producer, d.sequence): (d.ledger, d.entry) for d in delivered}
            for region, delivered in found.items()
        }
        messages = sorted(set.intersection(*(set(held) for held in places.values())))
        for message in self.sim.rng(f"coordinates {topic}").sample(messages, min(8, len(messages))):
            told = {}
            for region, (node, log) in logs.items():
                coordinate = (await node.machine.ask(coordinate_of, log, places[region][message])).coordinate
                if places[region][message] >= log.ledger.first_position():  # it was not trimmed meanwhile
                    told[region] = coordinate
            if not told:
                continue
            if len(set(told.values())) != 1 or None in told.values():
                raise Violation(f"{topic}: {message} has different coordinates: {told}")
            for region in told:
                node, log = logs[region]
                at = (await node.machine.ask(position_of, log, *next(iter(told.values())))).position
                if at != places[region][message] and places[region][message] >= log.ledger.first_position():
                    raise Violation(
                        f"{topic} in {region}: the coordinate of {message} leads to {at}, it lies at "
                        f"{places[region][message]}"
                    )

    def _consumed_everywhere(self) -> str:
        """The durable subscription of each region has delivered all that was acknowledged anywhere; a replicated one in
        any region, and all know it.
        """
        if self.settings.replicated:
            return self._consumed_together()
        for topic, history in self.histories.items():
            for region in self.regions:
                if lacking := history.lacking(region):
                    return f"{topic} in {region} lacks {len(lacking)}: {lacking[:5]}"
        return ""

    def _consumed_together(self) -> str:
        for topic, history in self.histories.items():
            delivered = set().union(*history.consumed.values())
            if lacking := [m for m in history.acknowledged if m not in delivered]:
                return f"{topic} lacks {len(lacking)} in every region: {lacking[:5]}"
            vectors = {region: str(log.vector) for region, name, _, log in self.probes.owners() if name == topic}
            if len(set(vectors.values())) > 1:
                return f"{topic}: {vectors}"
        backlogs = {
            (region, topic): log.ledger.cursors["sub"].backlog_entries
            for region, topic, _, log in self.probes.owners()
            if topic in self.histories
        }
        left = {where: entries for where, entries in backlogs.items() if entries}
        return (
            f"backlogs {left}"
            if left
            else ""
            if len(backlogs) == len(self.regions) * len(self.topics)
            else f"owners of {sorted(backlogs)} only"
        )

    async def _until(self, what: str, condition: Callable[[], bool | str], limit_s: float = CONVERGE_S) -> None:
        """`condition` returns True or "" when it is met; a text says what is missing."""
        deadline = self.sim.now() + limit_s
        while (state := condition()) not in (True, ""):
            if self.sim.now() > deadline:
                raise Violation(f"not within {limit_s:.0f} virtual seconds: {what}: {state}")
            await asyncio.sleep(0.1)
        self.trace(what)


def drawn(settings: WorldSettings, rng: random.Random) -> WorldSettings:
    """With its regions. A message is stored in every one, so that each region of many publishes fewer."""
    if settings.regions:
        return settings
    count = rng.choice(COUNTS)
    trims = rng.random() < TRIMS
    if settings.trims is not None or settings.replicated:  # what was consumed in another region is trimmed in each
        trims = bool(settings.trims)
    messages = max(1, settings.messages * 9 // count**2)
    if (ages := settings.ages) is None:
        ages = not trims and rng.random() < AGES
    if (durable := settings.durable) is None:
        durable = not (trims or ages) and rng.random() < DURABLE
    return replace(settings, regions=CITIES[:count], messages=messages, trims=trims, ages=ages, durable=durable)


def _task(call: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(call(*args))


def _later(after_s: float, call: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> asyncio.Task[Any]:
    async def run() -> Any:
        await asyncio.sleep(after_s)
        return await call(*args)

    return _task(run if after_s else call, *(() if after_s else args))


async def _idle(_: Any) -> None:
    pass


def run_seed(seed: int, settings: WorldSettings | None = None, trace: Callable[[str], None] | None = None) -> Verdict:
    """One world. Raises what the run found wrong."""
    try:
        return World(seed, settings, trace).run()
    finally:
        collect()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="geo_tests.sim.world", description="One simulated world, from its seed.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--trace", action="store_true", help="show what happens, with virtual times")
    parser.add_argument(
        "--passive", action="store_true", help="the namespace is active-passive (geo_tests.sim.passive_world)"
    )
    parser.add_argument("--weather", action="store_true", help="disks fill, fail, and rot, machines fall silent, too")
    parser.add_argument("--lost-disks", action="store_true", help="disks of bookies are lost, or come back older")
    parser.add_argument("--voters", action="store_true", help="three metadata voters a region, which lose theirs")
    parser.add_argument("--log-level", default="ERROR", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    chosen = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "geo_tests.sim.world", *(arguments or sys.argv[1:])],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    logging.basicConfig(level=chosen.log_level, format="            %(name)s %(message)s", stream=sys.stdout)
    trace = print if chosen.trace else None
    if chosen.passive:
        from geo_tests.sim.passive_world import run_passive

        verdict = run_passive(chosen.seed, trace=trace)[0]
    else:
        named = ((chosen.weather, WEATHER), (chosen.lost_disks, LOST_DISKS), (chosen.voters, THREE_VOTERS))
        verdict = run_seed(chosen.seed, next((settings for asked, settings in named if asked), None), trace=trace)
    print(f"seed {verdict.seed} holds: {verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
