"""One entry through a topic and back: what a canary and a drill try.

Is: publishing it, waiting until it is stored, reading it. Isn't: a time limit, or a verdict.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from heliograph.model.errors import HeliographError
from heliograph.model.positions import Position
from heliograph.wire.run import Run

if TYPE_CHECKING:
    from region_node.topics.topic import Topic


async def round_trip(topic: Topic, entry: bytes) -> tuple[Position, bool]:
    """entry: as it lies on the wire, checksum first. Returns where it was stored, and whether it came back as it was.
    Raises HeliographError.
    """
    stored: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def done(segments: list[tuple[int, int, int]]) -> None:
        if not stored.done():
            stored.set_result((segments[0][1], segments[0][2]))

    def failed(error: HeliographError) -> None:
        if not stored.done():
            stored.set_exception(error)

    topic.publish(Run([entry], [len(entry)]), done, failed)
    at = await stored
    runs = await topic.ledger.read(at, 1, 1 << 20)
    return at, bool(runs) and bytes(runs[0][2].parts[0]) == entry
