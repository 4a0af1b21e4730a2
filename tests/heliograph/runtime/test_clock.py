"""What deletes by time obeys the earliest clock that it can know of, and no jump."""

from __future__ import annotations

import pytest

from heliograph.runtime.clock import CautiousClock, StampClock
from tests.heliograph.runtime.wrong_clock import DAY_MS, Machine, ahead


@pytest.mark.parametrize("own", (0, DAY_MS, -DAY_MS))
@pytest.mark.parametrize("others", ((0,), (0, DAY_MS), (0, -DAY_MS), (DAY_MS, -5), ()))
def test_it_is_the_earliest_and_the_latest_of_those_that_were_heard(own: int, others: tuple[int, ...]) -> None:
    machine = Machine(own)
    clock = CautiousClock(machine, lambda: [ahead(wrong) for wrong in others])
    for machine.passed_s in (0.0, 10.0, 1e6):
        assert clock.wall_ms() == machine.truth_ms + min(own, *others, own)
        assert clock.latest_ms() == machine.truth_ms + max(own, *others, own)
        assert clock.monotonic() == machine.monotonic()


@pytest.mark.parametrize("heard", (False, True))
@pytest.mark.parametrize("jump_ms", (DAY_MS, 365 * DAY_MS, 1000))
def test_a_jump_of_the_wall_clock_moves_nothing(heard: bool, jump_ms: int) -> None:
    """Nor does it while nobody is heard any more: what was heard runs on by the monotonic clock."""
    machine = Machine()
    clock = CautiousClock(machine, lambda: [ahead()] if heard else [])
    machine.passed_s = 100
    machine.wrong_ms = jump_ms
    for machine.passed_s in (100.0, 200.0, 1e6):
        assert clock.wall_ms() == machine.truth_ms
    machine.wrong_ms = -jump_ms
    assert clock.wall_ms() == machine.truth_ms - jump_ms, "back it goes with it"
    machine.wrong_ms = 0
    assert clock.wall_ms() == machine.truth_ms, "and is right again with it"


def test_a_clock_that_was_behind_at_the_start_is_believed_once_another_agrees() -> None:
    others: list[float] = []
    machine = Machine(-DAY_MS)
    clock = CautiousClock(machine, lambda: others)
    machine.wrong_ms = 0
    machine.passed_s = 1e5
    assert clock.wall_ms() == machine.truth_ms - DAY_MS
    others.append(ahead())
    assert clock.wall_ms() == machine.truth_ms


def test_who_begins_beside_a_wrong_clock_waits_for_another_one() -> None:
    others: list[float] = []
    machine = Machine(DAY_MS)
    clock = CautiousClock(machine, lambda: others, lambda: False, patience_s=30)
    assert clock.wall_ms() == 0
    machine.passed_s = 29
    assert clock.wall_ms() == 0, "nothing is old"
    others.append(ahead())
    assert clock.wall_ms() == machine.truth_ms
    others.clear()
    machine.passed_s = 30
    assert clock.wall_ms() == machine.wall_ms(), "it has nothing else to go by"
    assert CautiousClock(machine, lambda: others).wall_ms() == machine.wall_ms(), "who is alone waits for nobody"


@pytest.mark.parametrize(
    ("own", "others", "stamped"),
    (
        (0, (), 0),
        (-DAY_MS, (), -DAY_MS),
        (-DAY_MS, (0,), 0),
        (-DAY_MS, (0, 0), 0),
        (-DAY_MS, (0, 5000, -5000), 0),
        (-DAY_MS, (0, -2 * DAY_MS, 0), 0),
        (0, (DAY_MS,), DAY_MS),
        (0, (0, DAY_MS), 0),
        (0, (0, 0, DAY_MS), 0),
        (0, (-DAY_MS,), 0),
        (0, (0, -DAY_MS), 0),
        (DAY_MS, (0, 0), DAY_MS),
        (-9000, (0, 0), -9000),
        (-11_000, (0, 0), 0),
    ),
)
def test_one_wrong_clock_makes_nothing_older_that_is_stamped_and_among_three_moves_only_itself(
    own: int, others: tuple[int, ...], stamped: int
) -> None:
    machine = Machine(own)
    clock = CautiousClock(machine, lambda: [ahead(wrong) for wrong in others])
    stamps = StampClock(clock)
    for machine.passed_s in (0.0, 10.5, 1e6):
        assert 0 <= stamps.wall_ms() - machine.truth_ms - stamped < 1000
        assert clock.behind_ms() % 1000 == 0 and clock.behind_ms() == stamps.wall_ms() - machine.wall_ms()
        assert stamps.monotonic() == machine.monotonic()


def test_a_clock_that_falls_behind_is_known_at_once_and_one_that_is_set_right_too() -> None:
    machine, asked = Machine(), [0]

    def heard() -> list[float]:
        asked[0] += 1
        return [ahead(), ahead()]

    clock = CautiousClock(machine, heard)
    for machine.wrong_ms in (0, -DAY_MS, -11_000, 0):
        assert 0 <= clock.stamp_ms() - machine.truth_ms < 1000
    assert asked[0] == 1, "it is asked with every run that is published"


def test_the_first_clock_that_is_heard_counts_from_the_next_stamp_on() -> None:
    machine, others = Machine(-DAY_MS), list[float]()
    clock = CautiousClock(machine, lambda: others)
    assert clock.stamp_ms() == machine.wall_ms(), "nobody was heard"
    others.append(ahead())
    assert 0 <= clock.stamp_ms() - machine.truth_ms < 1000
