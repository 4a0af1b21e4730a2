"""Each entry has its own receipt, whatever pieces a run's producers and the ledger's answer cut it into."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.frame_cutter import SendRun
from heliograph.wire.run import Run
from region_node.faces.pulsar.session.publishing import ConnectionProducers, ProducerHandle, PublishedRun
from tests.region_node.faces.pulsar.codec import Reader

Segment = tuple[int, list[int], list[int] | None]
Receipt = tuple[int, int, int, tuple[int, int]]
ANSWERS = {
    "whole": [(6, 10, 0)],
    "duplicates before": [(2, -1, -1), (4, 10, 0)],
    "two ledgers": [(3, 10, 7), (3, 11, 0)],
    "each by itself": [(1, 10, index) for index in range(6)],
    "elsewhere than its producers": [(1, 10, 0), (4, -1, -1), (1, 10, 1)],
}
SEGMENTS: dict[str, list[Segment]] = {
    "one producer": [(1, [5, 6, 7, 8, 9, 10], None)],
    "batches": [(1, [0, 10, 20, 30, 40, 50], [9, 19, 29, 39, 49, 59])],
    "three": [(1, [5, 6], None), (2, [0, 3, 6], [2, 5, 8]), (3, [70], None)],
}


class Connection:
    """A client's. `closed`: it has gone."""

    def __init__(self, *, closed: bool = False) -> None:
        self.closed, self.writable, self.flushes = closed, True, 0
        self.given = 0
        self.written: list[bytes] = []
        self.budget = SimpleNamespace(give=self._give, used=0)

    def _give(self, size_bytes: int) -> None:
        self.given += size_bytes

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def flush(self) -> None:
        self.flushes += 1

    def receipts(self) -> list[Receipt]:
        """(producer, sequence, highest sequence, position), in the order in which they came."""
        out = []
        for command, _ in Reader().feed(b"".join(self.written)):
            assert command.type == pb.BaseCommand.SEND_RECEIPT
            told = command.send_receipt
            ledger, entry = (
                n - (1 << 64) if n >> 63 else n for n in (told.message_id.ledgerId, told.message_id.entryId)
            )
            out.append((told.producer_id, told.sequence_id, told.highest_sequence_id, (ledger, entry)))
        return out


def published(connection: Connection, segments: list[Segment]) -> tuple[PublishedRun, list[int]]:
    """The run, and how many entries each producer was answered."""
    answered: list[int] = []
    handles = [SimpleNamespace(answer=answered.append) for _ in segments]
    event = SendRun(None, Run([b"x"] * 6, [1] * 6), segments)  # type: ignore[arg-type]
    producers = SimpleNamespace(port=connection, broker=SimpleNamespace(budget=connection.budget))
    return PublishedRun(cast(Any, producers), cast(Any, None), event, cast(Any, handles)), answered


@pytest.mark.parametrize(("segments", "answer"), list(itertools.product(SEGMENTS, ANSWERS)))
def test_every_entry_has_its_receipt_in_the_order_of_the_sends(segments: str, answer: str) -> None:
    connection = Connection()
    made, answered = published(connection, SEGMENTS[segments])
    made.done(ANSWERS[answer])
    places = [
        (-1, -1) if ledger < 0 else (ledger, first + index)
        for count, ledger, first in ANSWERS[answer]
        for index in range(count)
    ]
    entries = [
        (producer, sequence, highest[index] if highest is not None else 0)
        for producer, sequences, highest in SEGMENTS[segments]
        for index, sequence in enumerate(sequences)
    ]
    assert connection.receipts() == [(*entry, place) for entry, place in zip(entries, places, strict=True)]
    assert answered == [len(sequences) for _, sequences, _ in SEGMENTS[segments]]
    assert connection.given == 6 and connection.flushes == 1


def test_who_has_gone_hears_nothing_and_what_it_held_is_given_back() -> None:
    connection = Connection(closed=True)
    made, answered = published(connection, SEGMENTS["three"])
    made.done(ANSWERS["whole"])
    assert not connection.written and answered == [2, 3, 1] and connection.given == 6


def test_receipts_wait_for_those_of_what_is_still_on_its_way() -> None:
    for used, writable in ((1, True), (0, False)):
        connection = Connection()
        connection.writable, connection.budget.used = writable, used
        made, _ = published(connection, SEGMENTS["one producer"])
        made.done(ANSWERS["whole"])
        assert connection.flushes == 0 and len(connection.receipts()) == 6


@pytest.mark.parametrize("end", ("forget", "close_from_here"))
def test_a_producer_that_ends_late_takes_nothing_from_the_next_one_of_its_id(end: str) -> None:
    sent: list[Any] = []
    cutter = SimpleNamespace(producers={}, replicators={})
    port = SimpleNamespace(cutter=cutter, send=sent.append)
    producers = ConnectionProducers(cast(Any, port), cast(Any, None), cast(Any, None), cast(Any, None))
    former, second = (ProducerHandle(1, name, 7) for name in ("former", "second"))
    producers.begin(former)
    producers.forget(former)
    producers.begin(second)
    second.topic = cast(Any, SimpleNamespace(migration=None, next_owner=None))
    producers.ready(second)
    getattr(producers, end)(former)
    assert producers.handles == {1: second} and cutter.producers == {1: (second.topic, "second")} and not sent
    producers.close_from_here(second)
    assert not producers.handles and not cutter.producers and len(sent) == 1
