"""Which lost entries may lie in which hole: found by bisection, and never behind what a pass has not looked at."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.model.errors import PeerError
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links.audit_commands import Ask, AuditAnswer
from heliograph.wire.run import Run
from replicator.audit.audit_findings import Fault, Report
from replicator.audit.audit_holes import Holes
from replicator.audit.audit_pass import AuditPass
from replicator.audit.audit_repair import Repairer
from replicator.audit.audit_scan import Piece
from replicator.audit.audit_settings import AuditLimits
from replicator.log.replicated_entries import received
from tests.replicator.link_world import entry

AP, EU = (3, 1, 9), (2, 1, 9)
US: Any = None


class Stored:
    """Takes what is put into holes."""

    def __init__(self) -> None:
        self.placed: dict[Position, Position] = {}

    async def refill(self, log: Any, ledger: int, runs: list[tuple[int, Run]]) -> int:
        self.placed |= {(ledger, at): run.coordinate(0) for at, run in runs}
        return len(runs)

    async def read(self, *_: Any) -> list[Any]:
        return []


def published(at: int) -> Run:
    part = entry(at, "p", at)
    return Run([part], [len(part)], origin=AP, spans=((0, at, 1),), checksums=[int.from_bytes(part[2:6], "big")])


def passed(limits: AuditLimits, entries: dict[int, int | None]) -> tuple[AuditPass, Stored]:
    """entries: place in ledger 7 -> the entry of ap that lies there; None: it cannot be read."""

    async def ask(region: str, asked: Ask) -> AuditAnswer:
        runs = [published(at) for at in range(asked.after[1] + 1, asked.through[1] + 1)]
        return AuditAnswer(low=BEFORE_ALL, upto=asked.through, runs=tuple(runs))

    state = SimpleNamespace(local_end=lambda _: BEFORE_ALL, origin_at=lambda _: EU, trees=())
    ledger = SimpleNamespace(first_position=lambda: (7, 0), first_index=0)
    log: Any = SimpleNamespace(state=state, ledger=ledger)
    stored = Stored()
    storage: Any = stored
    found = AuditPass(log, storage, "us", ask, {"ap": 3}, {3: "ap"}, US, Report(), limits=limits)
    for place, at in entries.items():
        if at is None:
            found._note_hole(Piece(7, place, place, None))
        else:
            found._note_run(Piece(7, place, place, run := received(published(at), "ap")), run)
    return found, stored


def test_the_holes_around_an_entry_are_those_that_may_hold_it() -> None:
    rng = random.Random(7)
    for _ in range(20):
        holes, seen = Holes(rng.choice((5, 100))), dict[Any, Position]()
        for place in range(60):
            origin, at = rng.choice((AP, EU)), (0, 2 * place)
            if rng.random() < 0.4:
                holes.note(7, place, seen, 0, 0)
            else:
                holes.note_behind(origin, at)
                seen[origin] = at
        for origin in (AP, EU):
            for number in range(-1, 125):
                may = [i for i, hole in enumerate(holes.all) if hole.may_hold(origin, (0, number))]
                assert list(holes.around(origin, (0, number))) == may


def test_many_lost_entries_and_many_holes_are_brought_together_by_bisection() -> None:
    compared = [0]

    class Counted(tuple[int, int]):
        def __lt__(self, other: Any) -> bool:
            compared[0] += 1
            return tuple.__lt__(self, other)

        def __gt__(self, other: Any) -> bool:
            compared[0] += 1
            return tuple.__gt__(self, other)

    found, _ = passed(AuditLimits(), {place: None if place % 2 else 5 * place for place in range(600)})
    assert len(found.holes.all) == 300
    found.lost[AP] = {Counted((0, at)): None for at in range(3000) if at % 10}

    async def main() -> None:
        await found._settle()
        assert {finding.fault for finding in found.findings} == {Fault.UNREADABLE}
        repairer = Repairer(found)
        groups = await repairer._groups(await repairer._others_in_holes())
        assert [len(group.holes) for group in groups] == [1] * 300

    run_alone(main())
    assert compared[0] < 50 * 2700, "and not twice for each hole"


def test_a_hole_that_is_filled_is_one_of_which_all_is_known() -> None:
    """Of the holes at 1, 3, 5, 7 and 8, two are kept, and the third stands for all others."""
    entries = {0: 0, 1: None, 2: 2, 3: None, 4: 3, 5: None, 6: 5, 7: None, 8: None, 9: 9}
    for holes_max, placed in ((2, {(7, 1): (0, 1)}), (9, {(7, 1): (0, 1), (7, 5): (0, 4)})):
        found, stored = passed(AuditLimits(holes_max=holes_max), entries)
        found.lost[AP] = {(0, at): None for at in (1, 4)}

        async def main(found: AuditPass = found, noted: int = min(holes_max + 1, 5)) -> None:
            await found._settle()
            unreadable = [finding for finding in found.findings if finding.fault is Fault.UNREADABLE]
            assert len(unreadable) == noted and found.findings == unreadable, "none has no place"
            await Repairer(found)._refill(unreadable)

        run_alone(main())
        assert stored.placed == placed, holes_max
        if holes_max == 2:
            with pytest.raises(PeerError, match="the next pass goes on"):
                found.check_whole()
        else:
            found.check_whole()


def test_what_may_lie_behind_the_last_hole_that_is_kept_is_put_into_none_before_it() -> None:
    """One entry is lost, and two places may be its own; at 2 lies something of another origin."""
    found, stored = passed(AuditLimits(holes_max=1), {0: 0, 1: None, 3: None, 4: 2})
    found.lost[AP] = {(0, 1): None}

    async def main() -> None:
        await found._settle()
        assert Fault.LOST not in {finding.fault for finding in found.findings}
        await Repairer(found)._refill(found.findings)

    run_alone(main())
    assert not stored.placed
