"""One entry through a topic and back: what a canary and a drill try.

Is: publishing it, waiting until it is stored, reading it. Isn't: a time limit, or a verdict.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from heliograph.model.errors import HeliographError
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from region_node.runtime.topic_ports import Segments

if TYPE_CHECKING:
    from region_node.topics.topic import Topic


async def published(topic: Topic, run: Run) -> Segments:
    """Publishes a run, and returns where it lies once it is stored. Raises HeliographError."""
    stored: asyncio.Future[Segments] = asyncio.get_running_loop().create_future()

    def done(segments: Segments) -> None:
        if not stored.done():  # else who asked has gone
            stored.set_result(segments)

    def failed(error: HeliographError) -> None:
        if not stored.done():
            stored.set_exception(error)

    topic.publish(run, done, failed)
    return await stored


async def round_trip(topic: Topic, entry: bytes) -> tuple[Position, bool]:
    """entry: as it lies on the wire, checksum first. Returns where it was stored, and whether it came back as it was.
    Raises HeliographError.
    """
    (_, ledger, first), *_ = await published(topic, Run([entry], [len(entry)]))
    at = ledger, first
    runs = await topic.ledger.read(at, 1, 1 << 20)
    return at, bool(runs) and bytes(runs[0][2].parts[0]) == entry
