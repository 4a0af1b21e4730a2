"""Fetching a backup: one connection to one metadata node, on which its table comes piece by piece.

Is: the handshake, the request, and time-outs. Isn't: repeated by itself: a backup that was cut short is begun anew by
who wants it.
Invariants: the image holds everything that was acknowledged anywhere before `fetch` was called.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable

from heliograph.kv.machine_commands import open_answer
from heliograph.kv.metadata_store import Delete, MetadataStore
from heliograph.model.errors import MetadataUnavailable, PeerError, reason_of
from heliograph.wire.metadata_frames import (
    FEATURE_BACKUPS,
    FEATURES,
    FRAME_BYTES_MAX,
    MAGIC,
    Frame,
    MetadataFrameCutter,
    body,
    fields,
    frame,
)

SILENCE_S = 10.0
_READ_BYTES = 1 << 18
_NOWHERE = "/backup"
"""A key that nobody makes: deleting it only tells how far the log is."""


async def fetch(
    store: MetadataStore, address: str, on_piece: Callable[[bytes], None], *, ssl: tls.SSLContext | None = None
) -> None:
    """Calls on_piece with each piece of one consistent image (heliograph.kv.engine.table_image).

    store: a client of the same metadata; what it is answered says how far the image must reach. address: `host:port` of
    one of its nodes.
    Raises MetadataUnavailable (also where the connection breaks: begin anew), PeerError.
    """
    at_least = await store.txn([Delete(_NOWHERE)])
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(SILENCE_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=ssl)
    except (OSError, TimeoutError, ValueError) as error:  # ValueError: no host and port that can be looked up
        raise MetadataUnavailable(
            f"the metadata node at {address} cannot be reached: {reason_of(error, 'no answer')}"
        ) from error
    try:
        await _Fetching(reader, writer, address, on_piece).run(at_least)
    except (OSError, TimeoutError) as error:
        raise MetadataUnavailable(
            f"the backup from {address} was cut short ({reason_of(error, 'no answer')}): begin again"
        ) from error
    finally:
        writer.close()


class _Fetching:
    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: str,
        on_piece: Callable[[bytes], None],
    ) -> None:
        self._reader, self._writer, self._address, self._on_piece = reader, writer, address, on_piece
        self._cutter = MetadataFrameCutter()

    async def run(self, at_least: int) -> None:
        self._writer.write(frame(Frame.HELLO, 0, body(MAGIC, FEATURES, "backup")))
        kind, payload = await self._frame()
        magic, features = fields(payload, str, int) if kind == Frame.HELLO else ("", 0)
        if magic != MAGIC:
            raise PeerError(f"what listens at {self._address} is no metadata node")
        if not features & FEATURE_BACKUPS:
            raise MetadataUnavailable(
                f"the metadata node at {self._address} is of a version without backups: upgrade it"
            )
        self._cutter.size_max = FRAME_BYTES_MAX
        self._writer.write(frame(Frame.BACKUP, 1, body(at_least)))
        while True:
            kind, payload = await self._frame()
            if kind == Frame.PART:
                self._on_piece(payload)
            elif kind == Frame.ANSWER:
                open_answer(payload)
                return

    async def _frame(self) -> tuple[int, bytes]:
        """The node speaks each second, so silence means that it is gone."""
        while (found := self._cutter.next()) is None:
            async with asyncio.timeout(SILENCE_S):
                data = await self._reader.read(_READ_BYTES)
            if not data:
                raise OSError("the connection was closed")
            self._cutter.feed(data)
        return found[0], found[2]
