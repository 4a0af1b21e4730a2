"""Worked: how long a request has kept the broker's thread busy, where quotas of that are set.

Is: awaiting a coroutine and counting the seconds of its own steps. Isn't: a quota (`client_quotas`).
Invariants: what the coroutine returns, raises, and is sent goes through unchanged; time in which it waits counts for
nothing.
Source: Kafka KIP-124; docs/protocols/kafka.md, "Quotas".
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Worked(Generic[T]):
    """Await it once; then `seconds` is what its steps took, by `now`."""

    __slots__ = ("_now", "_work", "seconds")

    def __init__(self, work: Coroutine[Any, Any, T], now: Callable[[], float]) -> None:
        self._work, self._now = work, now
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        value: Any = None
        thrown: BaseException | None = None
        while True:
            begun = self._now()
            try:
                waited = steps.send(value) if thrown is None else steps.throw(thrown)
            except StopIteration as end:
                found: T = end.value
                return found
            finally:
                self.seconds += self._now() - begun
            value, thrown = None, None
            try:
                value = yield waited
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:  # a cancellation, as a rule: the coroutine hears of it where it waits
                thrown = error
