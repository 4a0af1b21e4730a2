"""What every object store must do: with a large object, and with names and objects that are small or there already."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.model.errors import CorruptData, NoSuchObject
from heliograph.runtime.system_disk import SystemDisk
from storage.tiered.objects.builtin_stores import maker
from storage.tiered.store import ObjectStore

MAKE = maker(lambda path: SystemDisk(Path(path)))
KEY = "us-1/public/default/t/ledger/00000000000000000001-ab"


async def pieces(*sizes: int, fail: bool = False) -> AsyncIterator[bytes]:
    for index, size in enumerate(sizes):
        yield bytes([index]) * size
    if fail:
        raise CorruptData("a bookie's answer")


async def keys_of(store: ObjectStore, prefix: str) -> dict[str, int]:
    return {key: size async for page in store.list(prefix) for key, size in page}


async def check_whole_or_not_at_all(store: ObjectStore) -> None:
    """What every store keeps to."""
    assert await keys_of(store, "us-1/") == {}
    await store.put(KEY, pieces(3, 0, 9_000_000, 5))
    assert await store.size_bytes(KEY) == 9_000_008
    assert bytes(await store.read(KEY, 0, 5)) == b"\0\0\0\2\2"
    assert bytes(await store.read(KEY, 9_000_003, 9_000_008)) == b"\3" * 5
    for start, stop in ((9_000_003, 9_000_009), (9_100_000, 9_100_001)):
        with pytest.raises(CorruptData):
            await store.read(KEY, start, stop)
    with pytest.raises(CorruptData, match="a bookie's answer"):
        await store.put(f"{KEY}cd", pieces(9_000_000, 9_000_000, fail=True))
    assert await keys_of(store, "us-1/") == {KEY: 9_000_008}
    assert await keys_of(store, "us-2/") == {}
    for call in (lambda: store.read("us-1/no", 0, 1), lambda: store.size_bytes("us-1/no")):
        with pytest.raises(NoSuchObject):
            await call()
    await store.delete([KEY, "us-1/no"])
    assert await keys_of(store, "us-1/") == {}


async def check_names_and_small_objects(store: ObjectStore) -> None:
    """What the stores that run here keep to as well. A prefix is whole parts of a name."""
    await store.put(KEY, pieces(3, 2))
    await store.put(KEY, pieces(1))
    assert await store.size_bytes(KEY) == 1 and bytes(await store.read(KEY, 0, 1)) == b"\0", "the last one counts"
    with pytest.raises(CorruptData, match="a bookie's answer"):
        await store.put(KEY, pieces(9_000_000, fail=True))
    assert await store.size_bytes(KEY) == 1, "what was there stays"
    await store.put("us-1/empty", pieces())
    assert await store.size_bytes("us-1/empty") == 0
    for start in (0, 1):
        with pytest.raises(ValueError):
            await store.read(KEY, start, start)
    await store.put("us-12/x", pieces(4))
    ours = {KEY: 1, "us-1/empty": 0}
    for prefix, wanted in (
        ("", {**ours, "us-12/x": 4}),
        ("us", {}),
        ("us-1", ours),
        ("us-1/", ours),
        ("us-1/public/default", {KEY: 1}),
        ("us-1/pub", {}),
        (KEY, {}),
    ):
        assert await keys_of(store, prefix) == wanted, prefix
    await store.delete([])
    await store.delete([KEY, "us-1/empty", KEY])
    assert await keys_of(store, "") == {"us-12/x": 4}
    with pytest.raises(NoSuchObject):
        await store.read("us-1/public", 0, 1)
