"""Audits: the product's own comparison of regions, over everything that a world holds once it has healed.

Is: a pass of every region over every topic, which must find nothing, and have looked at everything; and in some worlds
an entry of one region that is spoilt on all its bookies, which the next pass must find and put right. Isn't: a checker
of its own; what clients read is compared by `checkers`.

    flipped      a bit of the payload, against the entry's own checksum
    exchanged    a bit of the payload of another region's entry, with checksums that agree
    lost         another region's entry is gone, with its place
    extra        one more is there, in the name of a region that has another entry under that coordinate
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import Violation
from geo_tests.sim.damage import flipped, with_part
from geo_tests.sim.pulsar_client import Delivered
from heliograph.model.errors import HeliographError, NotAllowed
from heliograph.model.positions import Position
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import Run
from replicator.audit.audit_findings import Fault, Report
from replicator.audit.audit_pass import HIDDEN_BY_AUDIT
from replicator.audit.auditor import Auditor
from replicator.log.replicated_log import ReplicatedLog

if TYPE_CHECKING:
    from geo_tests.sim.world import World

Found = dict[str, dict[str, Sequence[Delivered]]]
"""Topic -> region -> what a reader found there."""

KINDS = {"flipped": Fault.DAMAGED, "exchanged": Fault.DIFFERENT, "lost": Fault.LOST, "extra": Fault.EXTRA}
EVERY = 4
"""One world of so many is spoilt."""
_LIMIT_S = 90.0


class Audits:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.sim.rng("audits")

    async def run(self, found: Found) -> None:
        """Raises Violation."""
        await self.nothing_is_found(found)
        self._world.verdict.audited = len(self._world.topics) * len(self._world.regions)
        if self._world.seed % EVERY == 0 and not self._world.settings.trims:
            await self._spoil_and_repair(sorted(KINDS)[self._world.seed // EVERY % len(KINDS)], found)

    async def nothing_is_found(self, found: Found) -> None:
        pairs = [(topic, region) for topic in self._world.topics for region in self._world.regions]
        reports = await asyncio.gather(*(self._audit(topic, region) for topic, region in pairs))
        for (topic, region), report in zip(pairs, reports, strict=True):
            if report.found or set(report.gone) - set(self._world.histories[topic].former):
                raise Violation(f"an audit of {topic} in {region} finds what nobody did: {report.shown()}")
            if report.entries < len(found[topic][region]) and not self._world.settings.trims:
                raise Violation(
                    f"an audit of {topic} in {region} looked at {report.entries} of {len(found[topic][region])} entries"
                )
        self._world.trace(f"{len(reports)} audits found nothing")

    async def _audit(self, topic: str, region: str) -> Report:
        """The report of a pass that begins now and could ask everybody."""
        deadline = self._world.sim.now() + _LIMIT_S
        report = Report()
        while self._world.sim.now() < deadline:
            asked = self._begun(topic, region)
            if asked is None:
                await asyncio.sleep(0.2)
                continue
            auditor, since_ms = asked
            while auditor.running(topic):  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.05)
            report = auditor.reports.get(topic, report)
            if report.began_ms >= since_ms and not report.error and not report.unchecked:
                return report
            await asyncio.sleep(0.5)
        raise Violation(
            f"no audit of {topic} in {region} comes to its end within {_LIMIT_S:.0f} virtual seconds: {report.shown()}"
        )

    def _begun(self, topic: str, region: str) -> tuple[Auditor, int] | None:
        """Who makes the pass, and from when on its report counts. None: nobody can now."""
        for there, name, node, _ in self._world.probes.owners():
            if (there, name) == (region, topic):
                try:
                    node.machine.run(node.roles[0].links.auditor.want, topic)
                except NotAllowed:  # its links are not open yet
                    return None
                return node.roles[0].links.auditor, node.machine.clock.wall_ms()
        return None

    # -- damage --------------------------------------------------------------------------------------------------------

    async def _spoil_and_repair(self, kind: str, found: Found) -> None:
        topic, region = self._rng.choice(self._world.topics), self._rng.choice(sorted(self._world.regions))
        ended = self._world.histories[topic].former  # what is of a life that has ended is compared with nobody
        there = [
            d
            for d in found[topic][region]
            if (kind == "flipped" or d.replicated_from) and d.replicated_from not in ended
        ]
        if not there:
            return
        victim = self._rng.choice(there)
        if kind == "extra":  # the last of its region: as much as can be lies before it there
            victim = [d for d in there if d.replicated_from == victim.replicated_from][-1]
        taken = [(d.ledger, d.entry) for d in found[topic].get(victim.replicated_from, ()) if d.replicated_from]
        if not await self._spoil(kind, topic, region, victim, taken):
            kind = "exchanged"
            await self._spoil(kind, topic, region, victim, taken)
        report = await self._audit(topic, region)
        text = (
            f"{victim.producer} {victim.sequence} of {topic} was {kind} in {region} at {victim.ledger}:{victim.entry}"
        )
        if report.found != {KINDS[kind]: 1}:
            raise Violation(f"{text}: the audit finds {report.shown()}")
        if report.left:
            raise Violation(f"{text}: the audit leaves it: {report.shown()}")
        again = await self._world.read(topic, region)
        if kind != "lost":
            same = list(again) == list(found[topic][region])
        else:  # it stands behind everything now
            same = _messages(again) == _messages(found[topic][region])
        if not same:
            raise Violation(f"{text}: it was repaired, and readers find something else than before")
        self._world.trace(f"{text}, and repaired")
        self._world.verdict.kinds.append(f"{kind}, found and repaired")
        await self.nothing_is_found({**found, topic: {**found[topic], region: again}})

    async def _spoil(self, kind: str, topic: str, region: str, victim: Delivered, taken: Sequence[Position]) -> bool:
        """On every bookie that has it. taken: where the victim's origin has another region's entry."""
        while True:
            for there, name, node, log in self._world.probes.owners():
                if (there, name) == (region, topic):
                    try:
                        return bool(
                            await node.machine.ask(
                                self._write, node.roles[0].links.auditor.storage, log, kind, victim, taken
                            )
                        )
                    except HeliographError as error:
                        self._world.trace(f"not spoilt: {error}")
            await asyncio.sleep(0.2)

    async def _write(
        self, storage: Any, log: ReplicatedLog, kind: str, victim: Delivered, taken: Sequence[Position]
    ) -> bool:
        """False: this one cannot be spoilt so."""
        ((_, run),) = await storage.read(log, victim.ledger, victim.entry, victim.entry, 1)
        if kind == "extra":
            return await self._add(log, run, [at for at in taken if at < run.coordinate(0)])
        spoilt = _gone(run, log) if kind == "lost" else flipped(run, self._rng, consistent=kind == "exchanged")
        await storage.replace(log, victim.ledger, [(victim.entry, spoilt)])
        return True

    async def _add(self, log: ReplicatedLog, run: Run, taken: Sequence[Position]) -> bool:
        """The same message once more, at the end, under one of the coordinates `taken`."""
        if not taken:
            return False
        strange = with_part(run, bytes(run.parts[0]), run.checksums)
        strange.spans = ((*self._rng.choice(taken), 1),)
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        log.append_late(strange, lambda _: stored.set_result(None), stored.set_exception)
        await stored
        return True


def _gone(run: Run, log: ReplicatedLog) -> Run:
    """What lies in the place of an entry that an audit took away: nothing that counts as the entry."""
    assert run.origin is not None
    ledger, entry = run.coordinate(0)
    left = SkipRecord(run.origin, (ledger, entry - 1), (ledger, entry), SkipReason.FILTERED, HIDDEN_BY_AUDIT).as_run()
    left.time_ms, left.first_index = run.time_ms, run.first_index
    return left


def _messages(found: Sequence[Delivered]) -> list[tuple[str, int, bytes]]:
    return sorted((d.producer, d.sequence, d.payload) for d in found)
