"""Sequences: which batches of idempotent producers were published before, in one partition.

Is: the last batches of each producer, as Kafka's brokers keep them, and what is answered to a batch that comes again,
too early, or from an older epoch. Isn't: storage, or who gets a producer id.
Invariants: a batch is stored once, however often it comes; a repetition is answered with the offset of the first, and
not before that is durable; a batch behind one that failed is refused, until that one has come again, also where no
batch of the producer is kept any more; of a producer, or an epoch after a fence, of which nothing is known any first
sequence is taken, and any later one where the last batch came from another region, once what is between has had
JUMP_MS to come; what is between and comes later all the same is stored as well, and never answered as a repetition.
Bounds: LAST_BATCHES a producer, `producers_max` producers (the longest idle is forgotten, as after Kafka's
producer.id.expiration).
Source: Kafka KIP-98, KIP-360; docs/protocols/kafka.md, "Producers".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from heliograph.model.errors import CorruptData, HeliographError
from heliograph.wire.kafka.record_batches import BatchHeader
from region_node.faces.kafka.error_codes import Code, Refused

LAST_BATCHES = 5
GAPS_MAX = 8
"""Ranges of a producer's sequences that may still come; the last ones are kept."""
JUMP_MS = 5_000
"""So long the batches between are waited for, which a client sends again where it was led here a moment too early; in
the order of their sequences, as its later ones are refused meanwhile.
"""
_WRAP = 1 << 31

Done = Callable[[int], None]
"""Called with the base offset."""
Failed = Callable[[HeliographError], None]


class Sent:
    """One batch of a producer. `offset` -1: it is not durable yet, and `waiting` are those who sent it again
    meanwhile.
    """

    __slots__ = ("epoch", "first", "last", "late", "offset", "producer", "waiting")

    def __init__(self, producer: int, epoch: int, first: int, last: int, offset: int = -1) -> None:
        self.producer, self.epoch, self.first, self.last, self.offset = producer, epoch, first, last, offset
        self.waiting: list[tuple[Done, Failed]] = []
        self.late = False
        """Later ones of its producer came before it."""


class _Producer:
    """`expected`: the sequence that comes next; -1: any, as nothing of this epoch has come. `lost`: the first of the
    batches whose append failed, as long as it is open what becomes of those behind it; -1: none. `carried`: the last
    batch came from another region, which may have had more. `gaps`: [low, high) of sequences that may still come,
    though later ones did. `asked`: (the lowest sequence that came while others were waited for, the time in ms when the
    first did), None: none.
    """

    __slots__ = ("asked", "batches", "carried", "epoch", "expected", "gaps", "lost")

    def __init__(self, epoch: int) -> None:
        self.epoch, self.expected, self.lost, self.carried = epoch, -1, -1, False
        self.gaps: tuple[tuple[int, int], ...] = ()
        self.asked: tuple[int, int] | None = None
        self.batches: deque[Sent] = deque(maxlen=LAST_BATCHES)

    def dump(self) -> list[Any]:
        """The batches that are durable; and whether more may have come, or may still."""
        batches = [[sent.first, sent.last, sent.offset] for sent in self.batches if sent.offset >= 0]
        following = (batches[-1][1] + 1) % _WRAP if batches else -1
        gaps = [gap for gap in self.gaps if gap[0] != following]
        # where nothing behind a gap is durable, the batch behind it may be any again
        carried = self.carried or len(gaps) < len(self.gaps)
        return [batches, [carried, gaps]] if carried or gaps else [batches]


def _is_behind(sequence: int, other: int) -> bool:
    """Whether it is that one, or comes later; after the highest one they begin again."""
    return (sequence - other) % _WRAP < _WRAP // 2


def _holds(gap: tuple[int, int], first: int, last: int) -> bool:
    low, high = gap
    size = (high - low) % _WRAP
    return (first - low) % _WRAP <= (last - low) % _WRAP < size


class Sequences:
    """Knows the last batches of each producer in one partition, and what to answer to the next."""

    __slots__ = ("_producers", "_producers_max")

    def __init__(self, producers_max: int = 10_000) -> None:
        self._producers: dict[int, _Producer] = {}
        self._producers_max = producers_max

    def submit(self, batch: BatchHeader, now_ms: int = 0) -> Sent | None:
        """What this batch repeats, or None after `accept`-able: call `accept` then. now_ms: the clock's, by which a
        jump waits. Raises Refused.
        """
        known = self._producers.get(batch.producer)
        if known is None:
            return None
        if batch.epoch < known.epoch:
            raise Refused(
                Code.INVALID_PRODUCER_EPOCH, f"producer {batch.producer} is at epoch {known.epoch}, not {batch.epoch}"
            )
        expected = known.expected
        if expected < 0:
            return None
        if batch.epoch > known.epoch:
            if batch.sequence and not known.carried:
                raise Refused(
                    Code.OUT_OF_ORDER_SEQUENCE_NUMBER, f"a new epoch begins with sequence 0, not {batch.sequence}"
                )
            return None
        last = (batch.sequence + batch.offsets - 1) % _WRAP
        for sent in known.batches:
            if sent.first == batch.sequence and sent.last == last:
                return sent
        if known.lost >= 0:
            expected = self._after_loss(known)
        if batch.sequence == expected:
            return None
        if not _is_behind(batch.sequence, expected):
            if any(_holds(gap, batch.sequence, last) for gap in known.gaps):
                return None
            raise Refused(
                Code.DUPLICATE_SEQUENCE_NUMBER, f"sequence {batch.sequence} was stored long ago, {expected} comes next"
            )
        if known.carried:  # those between were confirmed in a region that is lost, and come once that is back
            self._wait_for_those_between(known, batch.sequence, now_ms)
            return None
        raise Refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {batch.sequence} came where {expected} comes next")

    @staticmethod
    def _wait_for_those_between(known: _Producer, sequence: int, now_ms: int) -> None:
        """Raises Refused where they may still be sent again: the client asks again, with the lowest one first."""
        lowest, since_ms = known.asked or (sequence, now_ms)
        if now_ms < since_ms:  # the clock was put back
            since_ms = now_ms
        if _is_behind(lowest, sequence):
            lowest = sequence
        known.asked = lowest, since_ms
        if now_ms - since_ms < (JUMP_MS if sequence == lowest else 2 * JUMP_MS):
            raise Refused(
                Code.REQUEST_TIMED_OUT, f"sequence {known.expected} may still come before {sequence}: send it again"
            )

    @staticmethod
    def _after_loss(known: _Producer) -> int:
        """What comes next where an append has failed. Raises Refused: it is not known yet, the client asks again."""
        behind = [sent for sent in known.batches if _is_behind(sent.first, known.lost)]
        if all(sent.offset < 0 for sent in behind):
            if behind:
                raise Refused(
                    Code.REQUEST_TIMED_OUT, f"batches behind sequence {known.lost}, which failed, are on their way"
                )
            known.expected = known.lost
        # else it is stored as well, although its client was told that it is not
        known.lost = -1
        return known.expected

    def accept(self, batch: BatchHeader, offset: int = -1, *, carried: bool = False) -> Sent:
        """It is on its way, or with `offset` it was found in the log; carried: where another region has brought it."""
        sent = Sent(batch.producer, batch.epoch, batch.sequence, (batch.sequence + batch.offsets - 1) % _WRAP, offset)
        known = self._producers.pop(batch.producer, None)
        if known is not None and carried and self._came_late(batch, known):
            self._producers[batch.producer] = known
            if batch.epoch == known.epoch:
                self._fill(known, sent)
            return sent
        if known is None or known.epoch != batch.epoch:
            begins = not carried and (offset < 0 or (known is not None and known.carried))
            known = _Producer(batch.epoch)
            if begins and sent.first:
                known.gaps = ((0, sent.first),)
        self._producers[batch.producer] = known
        if known.gaps and sent.first != known.expected and self._fill(known, sent):
            return sent
        if known.carried and not carried and 0 <= known.expected != sent.first:
            known.gaps = (*known.gaps, (known.expected, sent.first))[-GAPS_MAX:]
        known.batches.append(sent)
        known.expected, known.carried, known.asked = (sent.last + 1) % _WRAP, carried, None
        while len(self._producers) > self._producers_max:
            del self._producers[next(iter(self._producers))]
        return sent

    @staticmethod
    def _fill(known: _Producer, sent: Sent) -> bool:
        """Whether it is one of those that were still to come; what comes next stays what it is."""
        gap = next((gap for gap in known.gaps if _holds(gap, sent.first, sent.last)), None)
        if gap is None:
            return False
        sent.late = True
        left = ((gap[0], sent.first), ((sent.last + 1) % _WRAP, gap[1]))
        known.gaps = (*(each for each in known.gaps if each != gap), *(each for each in left if each[0] != each[1]))
        known.gaps = known.gaps[-GAPS_MAX:]
        batches = known.batches
        if not batches or _is_behind(sent.first, batches[-1].first):
            batches.append(sent)
        else:  # the last one stays the one that came furthest
            if len(batches) == LAST_BATCHES:
                batches.popleft()
            batches.insert(max(0, len(batches) - 1), sent)
        return True

    @staticmethod
    def _came_late(batch: BatchHeader, known: _Producer) -> bool:
        """Whether its producer had gone on here before another region brought it: a region that is back, its tail."""
        if batch.epoch != known.epoch:
            return batch.epoch < known.epoch
        return known.expected >= 0 and not _is_behind(batch.sequence, known.expected)

    def carry(self) -> None:
        """More may have come of all that are known than is known here."""
        for known in self._producers.values():
            known.carried = True

    def fence(self, producer: int, epoch: int) -> None:
        """From now on only that epoch, or a higher one."""
        known = self._producers.get(producer)
        if known is None or known.epoch < epoch:
            self._producers[producer] = _Producer(epoch)

    def stored(self, sent: Sent, offset: int) -> None:
        sent.offset = offset
        waiting, sent.waiting = sent.waiting, []
        for done, _ in waiting:
            done(offset)

    def lost(self, sent: Sent, error: HeliographError) -> None:
        """Forgets a batch whose append failed, but not that it comes next, and tells those who sent it again
        meanwhile.
        """
        known = self._producers.get(sent.producer)
        if known is not None and known.epoch == sent.epoch:
            if sent in known.batches:
                known.batches.remove(sent)
            if sent.late:
                known.gaps = (*known.gaps, (sent.first, (sent.last + 1) % _WRAP))[-GAPS_MAX:]
            elif known.lost < 0 or _is_behind(known.lost, sent.first):
                known.lost = sent.first
        waiting, sent.waiting = sent.waiting, []
        for _, failed in waiting:
            failed(error)

    # -- storing -------------------------------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """Returns what is durable, for `load`: [producer, epoch, [[first, last, offset]...]] of each, and behind those
        [carried, gaps] where there is something to say.
        """
        return [[number, known.epoch, *known.dump()] for number, known in self._producers.items()]

    def load(self, dumped: list[Any]) -> None:
        """Takes over what `dump` has returned. Raises CorruptData."""
        try:
            for number, epoch, batches, *more in dumped:
                known = self._producers[int(number)] = _Producer(int(epoch))
                known.batches.extend(
                    Sent(int(number), int(epoch), int(first), int(last), int(offset)) for first, last, offset in batches
                )
                if known.batches:
                    known.expected = (known.batches[-1].last + 1) % _WRAP
                for carried, gaps in more:
                    known.carried, known.gaps = bool(carried), tuple((int(low), int(high)) for low, high in gaps)
        except (TypeError, ValueError) as error:
            raise CorruptData(f"producers of a partition: {error}") from error

    def __len__(self) -> int:
        return len(self._producers)
