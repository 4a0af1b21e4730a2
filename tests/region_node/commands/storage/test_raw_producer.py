"""What is published again goes under its old sequence, so many at a time, and what is refused ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand
from heliograph.wire.run import Run
from region_node.commands.storage.raw_producer import ConnectionLost, RawProducer, ServerRefused
from tests.region_node.faces.pulsar.codec import Reader, entry, frame

K = BaseCommand
WINDOW = 500


class Connected(RawProducer):
    """To a broker that a test is: `news` is what was sent since."""

    def __init__(self) -> None:
        super().__init__()
        self._reader, self._written = Reader(), list[bytes]()

    def write(self, buffers: Sequence[Any]) -> None:
        self._written += map(bytes, buffers)

    def news(self) -> list[tuple[BaseCommand, bytes]]:
        data, self._written = b"".join(self._written), []
        return self._reader.feed(data)

    def answers(self, kind: int, **fields: Any) -> None:
        body = frame(kind, **fields)[8:]
        self._on_frame(memoryview(body), memoryview(b""))

    def receipts(self, count: int) -> None:
        for _ in range(count):
            self.answers(K.SEND_RECEIPT, producer_id=1, sequence_id=0)


def run_of(count: int, counts: tuple[int, ...] | None = None) -> Run:
    parts = [entry(b"%d" % index) for index in range(count)]
    return Run(list(parts), [len(part) for part in parts], counts=counts)


def test_an_entry_goes_as_it_lay_there_under_the_sequence_of_its_place() -> None:
    async def main() -> None:
        made = Connected()
        await made.publish(40, run_of(3))
        await made.publish(43, run_of(2, (1, 5)))
        sends = made.news()
        assert [(c.send.producer_id, c.send.sequence_id) for c, _ in sends] == [(1, 40 + index) for index in range(5)]
        assert [c.send.num_messages for c, _ in sends] == [1, 1, 1, 1, 5]
        assert [payload for _, payload in sends] == [bytes(part) for part in (*run_of(3).parts, *run_of(2).parts)]
        finishing = asyncio.ensure_future(made.finish())
        for left in range(5, 0, -1):
            await asyncio.sleep(1)
            assert not finishing.done(), f"{left} have no receipt"
            made.answers(K.SEND_RECEIPT, producer_id=1, sequence_id=45 - left)
            assert made.confirmed == 45 - left
        await finishing

    run_alone(main())


def test_no_more_are_on_their_way_than_the_window_takes() -> None:
    async def main() -> None:
        made = Connected()
        publishing = asyncio.ensure_future(made.publish(0, run_of(WINDOW + 2)))
        for count in (WINDOW, 1, 1):
            await asyncio.sleep(1)
            assert len(made.news()) == count
            made.receipts(1)
        await publishing

    run_alone(main())


def test_the_producer_is_there_once_the_broker_says_so() -> None:
    async def main() -> None:
        made = Connected()
        beginning = asyncio.ensure_future(made.begin("persistent://t/n/x", "p"))
        await asyncio.sleep(1)
        ((command, _),) = made.news()
        asked = command.producer
        assert not beginning.done()
        assert (asked.topic, asked.producer_name, asked.producer_id) == ("persistent://t/n/x", "p", 1)
        for _ in range(2):
            made.answers(K.PRODUCER_SUCCESS, request_id=1, producer_name="p")
        await beginning
        with pytest.raises(TimeoutError):
            await Connected().begin("persistent://t/n/x", "p")

    run_alone(main())


@pytest.mark.parametrize("waits", ("finish", "window"))
@pytest.mark.parametrize("end", ("error", "moved", "lost"))
def test_what_ends_it_is_told_to_who_waits_and_to_who_comes(waits: str, end: str) -> None:
    async def main() -> None:
        made = Connected()
        if waits == "finish":
            await made.publish(0, run_of(2))
            made.receipts(1)
            waiting = asyncio.ensure_future(made.finish())
        else:
            waiting = asyncio.ensure_future(made.publish(0, run_of(WINDOW + 1)))
        await asyncio.sleep(1)
        if end == "error":
            made.answers(K.SEND_ERROR, producer_id=1, sequence_id=1, error=1, message="full")
        elif end == "moved":
            made.answers(K.CLOSE_PRODUCER, producer_id=1, request_id=1)
        else:
            made._end(ConnectionLost("gone"))
        wanted = ConnectionLost if end == "lost" else ServerRefused
        for late in (waiting, made.publish(9, run_of(1)), made.finish()):
            with pytest.raises(wanted):
                await late

    run_alone(main())


def test_an_error_behind_the_last_receipt_is_an_error() -> None:
    async def main() -> None:
        made = Connected()
        await made.publish(0, run_of(1))
        made.receipts(1)
        made.answers(K.SEND_ERROR, producer_id=1, sequence_id=1, error=1, message="full")
        with pytest.raises(ServerRefused):
            await made.finish()
        quiet = Connected()
        await quiet.publish(0, run_of(1))
        with pytest.raises(TimeoutError):
            await quiet.finish()

    run_alone(main())
