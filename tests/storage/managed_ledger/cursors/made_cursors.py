"""Cursors without a topic, which are never written."""

from __future__ import annotations

from heliograph.model.positions import Position
from storage.managed_ledger.cursors.cursor import CURSOR_SETTINGS, Cursor, CursorSettings
from storage.managed_ledger.metadata.ledger_catalog import Catalog


async def _never(_: Cursor) -> None:
    raise AssertionError


def cursor_of(catalog: Catalog, at: Position = (-1, -1), settings: CursorSettings = CURSOR_SETTINGS) -> Cursor:
    return Cursor(
        "c",
        catalog,
        at,
        durable=True,
        properties={},
        request_flush=lambda _: None,
        wait_flushed=_never,
        settings=settings,
    )
