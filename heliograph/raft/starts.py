"""Starts: by what a member that was put back to an older copy of its disk is known to the others.

Is: the numbers of this member's starts and of the others', as far as it has heard. Isn't: the file in which they lie
(`disk/starts_file`), or who sends what when (`core`).
A member numbers its starts, and while it runs takes another number now and then; each with bits by chance, so that two
with one number differ. It tells every member, each writes down the highest that it has heard of, and answers with that.
Whoever hears of a higher one as its own, or of another one with its own number, has forgotten that it gave it: it holds
an older copy of its disk. A number that nobody has confirmed is given again: starts of which nobody hears do not climb
past what others know.
What another member says is a word, and may be damaged: no number is above NUMBER_MAX, at which all of a member's starts
are, and the last one counts; nothing is sent, or taken up, more than once an election time-out because of it.
Invariant: a number lies on the disk before anybody is told of it, and one that was heard of before it is confirmed, but
for a full disk.
Source: docs/decisions/0232-an-older-copy-is-known-by-its-start.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.raft.messages import Lives

_CHANCE_BITS = 32
NUMBER_MAX = 1 << 31
"""A member that starts each second gets there in 68 years; what is above that is not heard, and lies in no file."""
OTHERS_MAX = 128
"""Of so many members the starts are written down; it bounds the file."""


@dataclass(frozen=True, slots=True)
class StartsRecord:
    """What lies on the disk. own: 0 where no start was numbered yet. confirmed: another voter has written it down.

    others: (member, the highest start of it that was heard of), sorted.
    """

    own: int = 0
    confirmed: bool = True
    others: Lives = ()

    def begun(self, chance: int) -> StartsRecord:
        """As it is when the member starts. chance: at least 32 bits of it."""
        return StartsRecord(following(self.own, chance), False, self.others) if self.confirmed else self


def number_of(start: int) -> int:
    return start >> _CHANCE_BITS


def following(start: int, chance: int) -> int:
    """The next start behind `start`."""
    return min(number_of(start) + 1, NUMBER_MAX) << _CHANCE_BITS | chance & ((1 << _CHANCE_BITS) - 1)


class Starts:
    """own: 0 for a member that numbers nothing. told: members that have confirmed the newest number; sure: those that
    have confirmed any of this run: they know of no later one. pending: the next number, which does not lie on the disk
    yet. answered: members whose number was answered with the own one since that was told last. rests_until: the member
    has taken up a number that it had forgotten, and takes up no other one before.
    """

    __slots__ = ("_others", "answered", "confirmed", "own", "pending", "rests_until", "sure", "told")

    def __init__(self, record: StartsRecord | None = None) -> None:
        record = record or StartsRecord()
        self.own, self.confirmed = record.own, record.confirmed
        self._others = {name: start for name, start in record.others if number_of(start) <= NUMBER_MAX}
        self.pending = 0
        self.told: set[str] = set()
        self.sure: set[str] = set()
        self.answered: set[str] = set()
        self.rests_until = 0.0

    def record(self) -> StartsRecord:
        others = tuple(sorted(self._others.items()))
        return StartsRecord(self.pending or self.own, self.confirmed and not self.pending, others)

    def of(self, member: str) -> int:
        """The highest start of another one that was heard of; 0: of none."""
        return self._others.get(member, 0)

    def hear(self, member: str, start: int, members: tuple[str, ...]) -> bool:
        """Another one says with which start it comes. members: of the group, who are not forgotten for others. Returns
        whether there is something to write down.
        """
        known, number = self.of(member), number_of(start)
        if not (number_of(known) < number <= NUMBER_MAX or (number == NUMBER_MAX and start != known)):
            return False
        if member not in self._others and len(self._others) >= OTHERS_MAX:
            self._others = {name: known for name, known in self._others.items() if name in members}
            if len(self._others) >= OTHERS_MAX:
                return False
        self._others[member] = start
        return True

    def confirm(self, member: str) -> bool:
        """That voter has written the newest number down. Returns whether there is something to write down."""
        self.told.add(member)
        self.sure.add(member)
        news, self.confirmed = not self.confirmed, True
        return news

    def is_older_than(self, start: int) -> bool:
        """Whether this member has given that start, and forgotten it."""
        own = number_of(max(self.own, self.pending))
        return start != self.own and own <= number_of(start) <= NUMBER_MAX and own < NUMBER_MAX

    def answers(self, member: str) -> bool:
        """Whether that one, who says with which start it comes, is to hear now with which this one does: two whose
        numbers nobody writes down would answer each other without an end.
        """
        if not self.own or member in self.told or member in self.answered:
            return False
        self.answered.add(member)
        return True

    def renumber(self, chance: int, above: int = 0) -> None:
        """Another number while it runs. above: a start of its own that it had forgotten; then nobody is sure of it, and
        all are told.
        """
        self.pending = following(max(self.own, above), chance)
        if above:
            self.sure.clear()
            self.told.clear()

    def store(self, record: StartsRecord, written: bool) -> bool:
        """What `record` said lies on the disk now, or that was full. Returns whether there is a number to tell."""
        if not self.pending or record.own != self.pending:
            return False
        if written:
            self.own, self.confirmed = self.pending, False
            self.told.clear()
        self.pending = 0
        return written
