"""Writes that stand or fall with one key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from heliograph.kv.checked_store import checked
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Check, Delete, MetadataStore, Put
from heliograph.model.errors import NotAllowed, VersionConflict

KEY = "/tombstones/x"
WRITES: dict[str, Callable[[MetadataStore], Awaitable[object]]] = {
    "put": lambda store: store.put("/a", b"2"),
    "delete": lambda store: store.delete("/a"),
    "txn": lambda store: store.txn([Delete("/a"), Put("/b", b"2")]),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("change", ["gone", "another version", "made again"])
def test_nothing_is_written_once_the_key_has_changed(write: str, change: str) -> None:
    async def main() -> None:
        store = EmbeddedStore()
        only_so = checked(store, Check(KEY, await store.put(KEY, b"1")))
        await store.put("/a", b"1")
        await WRITES[write](only_so)
        assert await store.get("/a") != (b"1", 2)
        before = await store.put("/a", b"1")
        if change != "another version":
            await store.delete(KEY)
        if change != "gone":
            await store.put(KEY, b"1")
        with pytest.raises(NotAllowed, match=f"{KEY} has changed"):
            await WRITES[write](only_so)
        assert await store.get("/a") == await only_so.get("/a") == (b"1", before)

    asyncio.run(main())


def test_what_else_a_write_expects_is_told_as_ever() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        only_so = checked(store, Check(KEY, await store.put(KEY, b"1")))
        assert not await only_so.delete("/a")
        version = await only_so.put("/a", b"1", expected=-1)
        for write in (only_so.put("/a", b"2", expected=version + 1), only_so.delete("/a", expected=version + 1)):
            with pytest.raises(VersionConflict, match="/a"):
                await write
        assert await only_so.delete("/a", expected=version) and await store.get("/a") is None

    asyncio.run(main())
