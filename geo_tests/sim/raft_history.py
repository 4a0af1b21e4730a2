"""Is a history of one register linearizable? Writes whose outcome nobody knows are part of it.

Is: the search of Wing and Gong with Lowe's memo, for one key with get, put, and compare-and-set on versions. Isn't: a
checker for several keys at once (linearizability is local: each key is checked by itself).
Source: Lowe, "Testing for linearizability", 2017; the same method as porcupine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

State = tuple[bytes, int] | None
"""(value, version); None = absent, whose version counts as 0."""

FOREVER = float("inf")
CONFLICT = -1


@dataclass(slots=True)
class Operation:
    """One call on one key. Values of writes are unique.

    returned: FOREVER where no answer came; such a write may have happened at any time after `called`, or never (a get
    is left out).
    seen: what a get found. version: what a write was answered with: the version it made, CONFLICT, or 0 where no answer
    came.
    """

    called: float
    returned: float
    kind: str  # "get" | "put" | "cas"
    value: bytes = b""
    expected: int = 0
    seen: State = None
    version: int = 0


def is_linearizable(operations: Sequence[Operation]) -> bool:
    """Some order of the operations, each at a moment between its call and its return, explains every answer."""
    made = {o.seen[0]: o.seen[1] for o in operations if o.kind == "get" and o.seen is not None}
    made |= {o.value: o.version for o in operations if o.version > 0}
    for number, operation in enumerate(operations):
        made.setdefault(
            operation.value, -2 - number
        )  # a version that nobody has seen: unlike all that a compare-and-set can expect
    calls = sorted((o for o in operations if o.kind != "get" or o.returned != FOREVER), key=lambda o: o.called)
    needed = sum(1 << i for i, o in enumerate(calls) if o.returned != FOREVER)
    seen: set[tuple[int, State]] = set()
    stack: list[tuple[int, State]] = [(0, None)]
    while stack:
        done, state = stack.pop()
        if done & needed == needed:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        end = FOREVER
        for i, operation in enumerate(calls):
            if operation.called > end:
                break
            if done >> i & 1:
                continue
            end = min(end, operation.returned)
            fits, after = _step(operation, state, made)
            if fits:
                stack.append((done | 1 << i, after))
    return False


def _step(operation: Operation, state: State, made: dict[bytes, int]) -> tuple[bool, State]:
    """Can it be the next one in this state, and the state behind it."""
    if operation.kind == "get":
        return operation.seen == state, state
    after = (operation.value, made[operation.value])
    if operation.kind == "put":
        return True, after
    matches = (state[1] if state is not None else 0) == operation.expected
    if operation.version == CONFLICT:
        return not matches, state
    return matches, after
