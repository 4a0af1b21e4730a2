"""For how long an operation is at its step: as far as this process has seen it."""

from __future__ import annotations

from dataclasses import replace

from region_node.dr.operations.operation import _FORGOTTEN_S, REJOIN, Operation, StepAges


def operation(number: int) -> Operation:
    return Operation.new(number, REJOIN, f"public/ns{number}", "us", "eu", "anna", 0)


def test_the_ages_of_ten_thousand_operations_that_are_asked_for_in_turn_all_grow() -> None:
    now_s = 0.0
    ages, every = StepAges(lambda: now_s), [operation(number) for number in range(10_001)]
    assert {ages.age_s(op) for op in every} == {0.0}
    now_s = 7.0
    assert {ages.age_s(op) for op in every} == {7.0}
    now_s = 8.0
    assert ages.age_s(replace(every[0], step="count")) == 0.0


def test_what_nobody_asks_for_is_forgotten() -> None:
    now_s = 0.0
    ages = StepAges(lambda: now_s)
    for number in range(100):
        ages.age_s(operation(number))
    now_s = _FORGOTTEN_S
    assert ages.age_s(operation(1)) == _FORGOTTEN_S and len(ages._seen) == 100
    now_s += 1.0
    assert ages.age_s(operation(1)) == _FORGOTTEN_S + 1 and len(ages._seen) == 1
    assert ages.age_s(operation(2)) == 0.0
