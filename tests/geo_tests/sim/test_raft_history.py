"""The checker of histories: accepts what has an order, refuses what has none."""

from __future__ import annotations

import random

from geo_tests.sim.raft_history import CONFLICT, FOREVER, Operation, is_linearizable


def get(called: float, returned: float, value: str = "", version: int = 0) -> Operation:
    return Operation(called, returned, "get", seen=(value.encode(), version) if version else None)


def put(called: float, returned: float, value: str, version: int = 0) -> Operation:
    return Operation(called, returned, "put", value.encode(), version=version)


def cas(called: float, returned: float, value: str, expected: int, version: int = 0) -> Operation:
    return Operation(called, returned, "cas", value.encode(), expected, version=version)


def test_one_after_the_other() -> None:
    assert is_linearizable([])
    assert is_linearizable([get(0, 1), put(2, 3, "x", 5), get(4, 5, "x", 5)])
    assert not is_linearizable([put(2, 3, "x", 5), get(4, 5)]), "a stale read"
    assert not is_linearizable([put(0, 1, "x", 5), put(2, 3, "y", 6), get(4, 5, "x", 5)])
    assert not is_linearizable([get(0, 1, "x", 5), put(2, 3, "x", 5)]), "a read from the future"


def test_overlapping_calls_have_some_order() -> None:
    assert is_linearizable([put(0, 10, "x", 5), get(1, 2), get(3, 4, "x", 5)])
    assert not is_linearizable([put(0, 10, "x", 5), get(1, 2, "x", 5), get(3, 4)]), "once seen, it stays"


def test_compare_and_set() -> None:
    assert is_linearizable([cas(0, 1, "x", 0, 5), cas(2, 3, "y", 5, 6), cas(4, 5, "z", 5, CONFLICT), get(6, 7, "y", 6)])
    assert not is_linearizable([cas(0, 1, "x", 0, 5), cas(2, 3, "y", 0, 6)]), "both found nothing"
    assert not is_linearizable([cas(0, 1, "x", 0, CONFLICT)]), "refused without a reason"


def test_unknown_outcomes() -> None:
    assert is_linearizable([put(0, FOREVER, "x"), get(1, 2), get(3, 4, "x", 9)])
    assert is_linearizable([put(0, FOREVER, "x"), get(1, 2), get(3, 4)])
    assert not is_linearizable([put(0, FOREVER, "x"), get(1, 2, "x", 9), get(3, 4)])
    assert is_linearizable([put(0, FOREVER, "x"), cas(1, 2, "y", 0, CONFLICT)]), "the unknown put explains the conflict"
    assert not is_linearizable([put(1, FOREVER, "x"), get(-1, 0, "x", 3)])


def test_histories_of_a_real_register_pass_and_changed_ones_fail() -> None:
    refused = 0
    for seed in range(200):
        rng = random.Random(seed)
        history: list[Operation] = []
        state: tuple[bytes, int] | None = None
        known = [0, 1]
        for number in range(1, 40):
            at = number + rng.random() * 3
            called, returned = at - rng.random() * 3, at + rng.random() * 3
            kind = rng.choice(("get", "put", "cas"))
            operation = Operation(called, returned, kind, b"%d" % number, 0)
            history.append(operation)
            operation.expected = int(at * 1000)  # the moment of effect, replaced below
        for operation in sorted(history, key=lambda o: o.expected):
            version = operation.expected
            operation.expected = rng.choice(known[-2:])
            if operation.kind == "get":
                operation.seen = state
                known.append(state[1] if state else 0)
            elif operation.kind == "cas" and (state[1] if state else 0) != operation.expected:
                operation.version = CONFLICT
            else:
                state = (operation.value, version)
                operation.version = version
            if operation.kind != "get" and rng.random() < 0.1:
                operation.returned, operation.version = FOREVER, 0
            elif operation.version > 0:
                known.append(operation.version)
        assert is_linearizable(history), seed
        reads = [o for o in history if o.kind == "get" and o.seen is not None]
        victim = rng.choice(reads)
        victim.seen = next(
            ((o.value, o.version) for o in history if o.version > 0 and o.called > victim.returned), victim.seen
        )
        refused += not is_linearizable(history)
    assert refused > 100
