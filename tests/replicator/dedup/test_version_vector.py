"""The target's rule: which entry of which origin is accepted, is a duplicate, or lies behind a gap."""

from __future__ import annotations

import random

import pytest

from heliograph.model.coordinates import Origin, Vector
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import Run
from replicator.dedup.version_vector import Intake, RunVerdict

US: Origin = (1, 1, 7)
EU: Origin = (2, 1, 9)
ACCEPT, DUPLICATE, GAP = RunVerdict.ACCEPT, RunVerdict.DUPLICATE, RunVerdict.GAP


def run_of(origin: Origin, positions: list[Position]) -> Run:
    """One entry for each position; its bytes name it."""
    parts = [f"{origin[0]}:{ledger}:{entry}".encode() for ledger, entry in positions]
    spans = tuple((ledger, entry, 1) for ledger, entry in positions)
    return Run(parts, [len(part) for part in parts], origin=origin, spans=spans, checksums=[0] * len(parts))


def coordinates(run: Run) -> list[Position]:
    found = [run.coordinate(index) for index in range(run.count)]
    assert [bytes(part) for part in run.parts] == [f"{run.origin[0]}:{a}:{b}".encode() for a, b in found]  # type: ignore[index]
    return found


def intake(**durable: Position) -> Intake:
    vector = Vector()
    for name, through in durable.items():
        vector.advance({"us": US, "eu": EU}[name], through)
    return Intake(vector)


@pytest.mark.parametrize(
    ("previous", "last", "verdict"),
    [
        (BEFORE_ALL, (4, 5), DUPLICATE),
        ((4, 4), (4, 5), DUPLICATE),
        ((4, 5), (4, 6), ACCEPT),
        ((4, 2), (4, 6), ACCEPT),
        ((4, 5), (9, 0), ACCEPT),
        ((4, 6), (4, 7), GAP),
        ((9, 0), (9, 1), GAP),
    ],
)
def test_the_rule(previous: Position, last: Position, verdict: RunVerdict) -> None:
    """Everything up to (4, 5) is held."""
    assert intake(us=(4, 5)).judge(US, previous, last) is verdict
    assert intake(us=(4, 5)).judge(EU, previous, last) is (ACCEPT if previous == BEFORE_ALL else GAP), "each by itself"


def test_of_a_run_the_part_above_the_prefix_is_accepted_whatever_way_it_is_cut() -> None:
    positions = [(4, 3), (4, 4), (4, 6), (6, 0), (6, 1), (9, 2)]
    for held in range(len(positions)):
        prefix = positions[held - 1] if held else BEFORE_ALL
        taken = intake(us=prefix)
        assert coordinates(taken.accept(run_of(US, positions))) == positions[held:]
        assert taken.submitted(US) == (9, 2) and taken.durable.prefix(US) == (
            positions[held - 1] if held else BEFORE_ALL
        )
    span = Run([b"a", b"b", b"c"], [1, 1, 1], origin=US, spans=((4, 4, 3),), checksums=[0, 0, 0])
    assert [bytes(part) for part in intake(us=(4, 5)).accept(span).parts] == [b"c"], "a prefix may end inside of a span"
    assert intake(us=(4, 5)).accept(span).coordinate(0) == (4, 6)


def test_a_failed_append_takes_back_what_is_not_durable_and_nothing_else() -> None:
    taken = intake(us=(4, 5), eu=(1, 1))
    taken.accept(run_of(US, [(4, 6), (4, 7)]))
    taken.accept(run_of(EU, [(1, 2)]))
    taken.confirm(US, (4, 6))
    assert taken.judge(US, (4, 6), (4, 7)) is DUPLICATE
    taken.rollback()
    assert taken.submitted(US) == (4, 6) and taken.submitted(EU) == (1, 1)
    assert taken.judge(US, (4, 6), (4, 7)) is ACCEPT and taken.judge(US, (4, 7), (4, 8)) is GAP
    taken.submit_again(US, (4, 7))
    assert taken.judge(US, (4, 6), (4, 7)) is DUPLICATE and taken.judge(EU, (1, 1), (1, 2)) is ACCEPT
    taken.submit_again(US, (4, 6))
    assert taken.submitted(US) == (4, 7), "it never goes back"


def test_of_a_skip_what_entries_have_filled_is_left_out_and_a_loss_is_named() -> None:
    taken = intake(us=(4, 5))
    lost = SkipRecord(US, (4, 2), (4, 9), SkipReason.TRIMMED, "eu")
    cut = taken.accept_skip(lost)
    assert (cut.after, cut.through, cut.reason, cut.route) == ((4, 5), (4, 9), SkipReason.TRIMMED, "eu")
    assert taken.submitted(US) == (4, 9) and taken.durable.prefix(US) == (4, 5)
    taken.confirm_skip(cut)
    assert taken.durable.prefix(US) == (4, 9) and taken.durable.missing(US) == (((4, 5), (4, 9)),)
    whole = SkipRecord(US, (4, 9), (5, 0), SkipReason.FILTERED, "eu")
    assert taken.accept_skip(whole) is whole
    taken.confirm_skip(whole)
    assert taken.durable.prefix(US) == (5, 0) and taken.durable.missing(US) == (((4, 5), (4, 9)),), (
        "what was not meant for this region is no loss"
    )


def test_nothing_is_kept_of_an_origin_that_has_nothing_on_its_way() -> None:
    taken = intake()
    taken.accept(run_of(US, [(1, 0), (1, 1)]))
    taken.confirm(US, (1, 0))
    assert US in taken._submitted
    taken.confirm(US, (1, 1))
    assert not taken._submitted and taken.submitted(US) == (1, 1)


@pytest.mark.parametrize("seed", range(120))
def test_each_entry_is_appended_once_and_in_order_whoever_sends_it_again(seed: int) -> None:
    """Senders that rewind, overlap, begin too late, and lose what they sent; appends that fail with all behind them."""
    rng = random.Random(seed)
    published = {
        origin: [(ledger, at) for ledger in (1, 2, 5) for at in range(rng.randrange(2, 7))] for origin in (US, EU)
    }
    held: dict[Origin, list[Position]] = {US: [], EU: []}
    waiting: list[tuple[Origin, list[Position]]] = []
    taken = intake()
    for _ in range(200):
        origin = rng.choice((US, EU))
        log = published[origin]
        have = len(held[origin]) + sum(len(part) for which, part in waiting if which == origin)
        match rng.randrange(5):
            case 0 | 1 | 2:
                start = min(max(0, have + rng.randrange(-3, 3)), len(log) - 1)
                part = log[start : start + rng.randrange(1, 5)]
                verdict = taken.judge(origin, log[start - 1] if start else BEFORE_ALL, part[-1])
                expected = GAP if start > have else DUPLICATE if start + len(part) <= have else ACCEPT
                assert verdict is expected
                if verdict is ACCEPT:
                    fresh = coordinates(taken.accept(run_of(origin, part)))
                    assert fresh == log[have : start + len(part)]
                    waiting.append((origin, fresh))
            case 3 if waiting:
                which, part = waiting.pop(0)
                held[which] += part
                taken.confirm(which, part[-1])
            case 4 if rng.random() < 0.3:
                waiting.clear()
                taken.rollback()
            case _:
                pass
        for origin in (US, EU):
            assert held[origin] == published[origin][: len(held[origin])]
            assert taken.durable.prefix(origin) == (held[origin][-1] if held[origin] else BEFORE_ALL)
            pending = [part[-1] for which, part in waiting if which == origin]
            assert taken.submitted(origin) == (pending[-1] if pending else taken.durable.prefix(origin))
    assert held[US] or held[EU]
