"""Numbered messages that flow while something is broken, and what of them every region's copy has."""

from __future__ import annotations

import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from region_node.chaos.judge import PublishedNumbers, compared
from region_node.chaos.regions import PATIENCE_S, Regions, eventually

_SENT, _ACKED, _FAILED = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageForm:
    """What the messages of a stream are like. keys: message n gets key n modulo this; 0: none. size_bytes: of each, at
    least. repeat_every: each so many messages one is sent twice under one sequence id, as by a producer that has not
    heard; 0: none.
    """

    keys: int = 0
    size_bytes: int = 0
    repeat_every: int = 0


class NumberedStream:
    """Publishes numbered messages from one region, and knows which were acknowledged. `name`: what its messages bear
    before their number, and its producer's name; the region's unless given. `repeats`: those whose receipt names no
    position. `failed`: how many were refused. `tail`: those that a region had alone when another one took over.

    answered: is called with the seconds until each receipt, on a thread of the client's.

    The C++ client that is given no first sequence takes the broker's last one whenever it connects and has no receipt
    yet, and so begins anew behind messages that it has sent: what follows are repeats, and not stored. With a first
    sequence it never does: what is missing then was lost.
    """

    def __init__(
        self,
        regions: Regions,
        region: str,
        topic: str,
        first_sequence: int | None = 1,
        *,
        name: str = "",
        form: MessageForm = MessageForm(),
        answered: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.region, self.name, self.form = region, name or region, form
        self.sent, self.acked, self.failed = 0, 0, 0
        self.repeats: set[int] = set()
        self.tail: set[int] = set()
        self._answered = answered
        self._state = bytearray()
        settings = {
            "batching_enabled": False,
            "block_if_queue_full": True,
            "send_timeout_millis": 0,
            "initial_sequence_id": first_sequence,
        }
        self._producer = regions.client(region).create_producer(topic, f"p-{self.name}", **settings)

    def publish(self, count: int) -> None:
        keys, every = self.form.keys, self.form.repeat_every
        for _ in range(count):
            number = self.sent
            self._state.append(_SENT)
            self.sent += 1
            fields: dict[str, Any] = {"partition_key": f"{self.name}-{number % keys}"} if keys else {}
            repeated = bool(every) and number % every == every - 1
            if every:
                fields["sequence_id"] = number + 2  # one above what the producer was told to begin with
            for _ in range(2 if repeated else 1):
                told = partial(self._told, number, time.monotonic())
                self._producer.send_async(f"{self.name}-{number}".ljust(self.form.size_bytes).encode(), told, **fields)

    def _told(self, number: int, began: float, result: Any, where: Any) -> None:
        if self._state[number] == _ACKED:
            return
        if "Ok" in str(result):
            if where.ledger_id() < 0:
                self.repeats.add(number)
            self.acked += 1
            self.failed -= self._state[number] == _FAILED
            self._state[number] = _ACKED
            self._answered(time.monotonic() - began)
        elif self._state[number] == _SENT:
            self._state[number] = _FAILED
            self.failed += 1

    @property
    def published(self) -> PublishedNumbers:
        """What it has sent so far, and which of it was acknowledged."""
        acked = [number for number, state in enumerate(self._state) if state == _ACKED]
        return PublishedNumbers(source=self.name, sent=self.sent, acked=acked, keys=self.form.keys, tail=self.tail)

    def bodies(self) -> list[str]:
        return [f"{self.name}-{n}" for n in range(self.sent)]

    def finish(self, patience_s: float = PATIENCE_S) -> None:
        """Returns when all that was sent is acknowledged, or refused. Raises NotInTime."""
        eventually(
            lambda: self.acked + self.failed == self.sent, f"{self.region}: all that was sent is answered", patience_s
        )

    def close(self) -> None:
        self._producer.close()


class RegionCopies:
    """The messages of each source that the regions' copies of a topic have. What was read once is not read again: a run
    of an hour has a million of them. after: by region, the message id behind which it begins; else with the first one.
    """

    def __init__(self, regions: Regions, topic: str, after: Mapping[str, Any] | None = None) -> None:
        self._regions, self._topic = regions, topic
        self._last: dict[str, Any] = dict(after or {})
        self._numbers: dict[str, dict[str, array[int]]] = {}

    def of(self, region: str) -> Mapping[str, int]:
        """Source -> how many of its messages can be read in `region` now."""
        return defaultdict(int, {source: len(numbers) for source, numbers in self.numbers(region).items()})

    def numbers(self, region: str) -> Mapping[str, Sequence[int]]:
        """Source -> the numbers of its messages that can be read in `region` now, in the order of the copy."""
        found = self._numbers.setdefault(region, {})
        for message in self._regions.read_on(region, self._topic, self._last.get(region)):
            source, number = numbered(message.data())
            if number >= 0:
                found.setdefault(source, array("q")).append(number)
            self._last[region] = message.message_id()
        return found


def numbered(body: bytes) -> tuple[str, int]:
    """The source and the number of a message; (its text, -1) where it is none of a stream's."""
    source, _, number = body.decode(errors="replace").rpartition("-")
    return (source, int(number)) if number.strip().isdecimal() else (body.decode(errors="replace"), -1)


def missing(stream: NumberedStream, copy: Sequence[str]) -> str:
    """What is wrong with a region's copy of what the stream published; "": nothing. All that was sent must be there."""
    mine = [number for source, number in (numbered(body.encode()) for body in copy) if source == stream.name]
    published = PublishedNumbers(source=stream.name, sent=stream.sent, acked=range(stream.sent))
    found = compared(published, mine)
    if found.whole:
        return ""
    lost = found.lost
    repeats = f", {len(stream.repeats & set(lost))} of them answered as repeats" if lost else ""
    what = f"{len(lost)} lost ({lost[0]} to {lost[-1]})" if lost else "none lost"
    more = f", {len(found.unsent)} that nobody sent" if found.unsent else ""
    return f"{what}{repeats}, {len(found.twice)} twice, in order: {not found.disordered}{more}"
