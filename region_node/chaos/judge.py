"""The judge: what publishers were told, held against what is read, in a copy or by a subscription.

Is: a comparison of numbers, and its outcome in sentences. Isn't: reading them, or a reason why.
Invariants of a history that is kept: each message that was acknowledged is read, none is stored twice, none comes that
nobody sent, and those of one publisher (of one key of it, where it has keys) are in the order in which they were sent.
A message that was sent and not acknowledged may be there or not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """promise: `kept`, `once`, `in order`, `sent`, `risk`, `acknowledged`, or `whole again`. where: a region, a
    subscription, a link, or a step. text: a sentence.
    """

    promise: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedNumbers:
    """What one publisher did: it sent the numbers below `sent`, in that order. acked: those whose receipt came. keys:
    message n had key n modulo this; 0: there are no keys, and all of them are in one order. tail: those that a region
    had alone when another one took over: they come behind what that one took meanwhile, and no order is asked of them.
    """

    source: str
    sent: int
    acked: Collection[int]
    keys: int = 0
    tail: Collection[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Numbers, each list ascending. lost: acknowledged and not read. twice: read from two places. disordered: read for
    the first time behind a later one of their key. unsent: nobody sent them.
    """

    lost: list[int] = field(default_factory=list)
    twice: list[int] = field(default_factory=list)
    disordered: list[int] = field(default_factory=list)
    unsent: list[int] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not (self.lost or self.twice or self.disordered or self.unsent)


def compared(published: PublishedNumbers, numbers: Sequence[int]) -> Comparison:
    """numbers: in the order in which they were read, one for each place that a message was read from."""
    seen, twice, disordered, last = set[int](), set[int](), list[int](), dict[int, int]()
    for number in numbers:
        if number in seen:
            twice.add(number)
            continue
        seen.add(number)
        if number in published.tail:
            continue
        key = number % published.keys if published.keys else 0
        if number < last.get(key, -1):
            disordered.append(number)
        last[key] = max(number, last.get(key, -1))
    return Comparison(
        lost=sorted(set(published.acked) - seen),
        twice=sorted(twice),
        disordered=sorted(disordered),
        unsent=sorted(n for n in seen if not 0 <= n < published.sent),
    )


def broken(published: PublishedNumbers, numbers: Sequence[int], where: str) -> list[BrokenPromise]:
    """What is wrong with what was read of one publisher; none: nothing. where: who read it."""
    found = compared(published, numbers)
    of, order = published.source, "their keys" if published.keys else "their publisher"
    rows = (
        ("kept", found.lost, f"acknowledged messages of {of} are lost"),
        ("once", found.twice, f"messages of {of} are stored twice"),
        ("in order", found.disordered, f"messages of {of} are not in the order of {order}"),
        ("sent", found.unsent, f"messages of {of} were never sent"),
    )
    return [
        BrokenPromise(promise, where, f"{len(wrong)} {text} ({shown(wrong)})") for promise, wrong, text in rows if wrong
    ]


def shown(numbers: Sequence[int]) -> str:
    """The first of them, and the last, for a person."""
    if len(numbers) <= _SHOWN_MAX:
        return ", ".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[: _SHOWN_MAX - 1]))}, … {numbers[-1]}"
