"""The writes to the list of what was revoked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from global_config import keys
from global_config.revocation_list import KEPT_MS, RevocationList
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Delete, rows_under
from heliograph.model.configuration.revocations import REVOCATIONS, Revocation
from heliograph.model.errors import NotAllowed, NotFound


def record(name: str, since_ms: int = 1000, **fields: Any) -> Revocation:
    return Revocation(kind="token", name=name, since_ms=since_ms, **fields)


async def names(store: EmbeddedStore) -> list[str]:
    return [Revocation.decode(value).name for _, value, _ in await rows_under(store, REVOCATIONS)]


def test_one_in_the_place_of_another_and_lifted_once() -> None:
    async def run() -> None:
        store = EmbeddedStore()
        made = RevocationList(store)
        assert await made.add(record("a/b c")) == (None, record("a/b c"))
        _, second = await made.add(record("a/b c", 2000, reason="again"))
        assert second == record("a/b c", 2000, reason="again")
        assert await made.add(second) == (second, record("a/b c", 2001, reason="again"))  # newer than what it replaces
        before, after = await made.lift("token", "a/b c", 3000, "root")
        assert before.reason == "again" and (after.lifted_ms, after.lifted_by) == (3000, "root")
        assert await names(store) == ["a/b c"]
        for name in ("a/b c", "never"):
            with pytest.raises(NotFound, match="revocations list"):
                await made.lift("token", name, 4000, "root")

    asyncio.run(run())


def test_there_are_so_many_and_the_refusal_says_what_to_do() -> None:
    async def run() -> None:
        made = RevocationList(EmbeddedStore(), records_max=3)
        for name in "abc":
            await made.add(record(name))
        await made.add(record("c", 1001))
        with pytest.raises(NotAllowed, match="revocations remove"):
            await made.add(record("d"))

    asyncio.run(run())


def test_one_is_revoked_although_what_is_over_may_not_go_yet() -> None:
    """Whoever decides has another clock, by which nothing is over for long enough."""

    class Refusing(EmbeddedStore):
        async def txn(self, ops: Any) -> int:
            if any(isinstance(op, Delete) for op in ops):
                raise NotAllowed("a revocation is lifted, and goes when it has been over for a month")
            return await super().txn(ops)

    async def run() -> None:
        store = Refusing()
        made = RevocationList(store)
        await made.add(record("over", until_ms=2000))
        await made.add(record("urgent", 2001 + KEPT_MS))
        assert sorted(await names(store)) == ["over", "urgent"]

    asyncio.run(run())


def test_what_is_over_goes_when_another_one_comes_and_what_is_in_force_never() -> None:
    async def run() -> None:
        store = EmbeddedStore()
        made = RevocationList(store, records_max=3)
        await made.add(record("runs out", until_ms=2000))
        await made.add(record("lifted"))
        await made.add(record("stays"))
        await made.lift("token", "lifted", 2000, "root")
        with pytest.raises(NotAllowed):
            await made.add(record("new", 2000 + KEPT_MS - 1))
        await made.add(record("new", 2000 + KEPT_MS))
        assert await names(store) == ["new", "stays"]

    asyncio.run(run())


def test_what_two_regions_have_revoked_is_lifted_by_both() -> None:
    async def run() -> None:
        store = EmbeddedStore()
        for region in ("us", "eu"):
            await store.put(keys.region(region), b"")
        made = RevocationList(store)
        await made.add(record("a", before_ms=900, until_ms=5000, regions=("us", "gone")))
        with pytest.raises(NotAllowed, match="was revoked in us: lift it there"):
            await made.lift("token", "a", 2000, "root", "eu")
        _, both = await made.add(record("a", 2000, before_ms=100, until_ms=6000, regions=("eu",)))
        assert both == record("a", 2000, before_ms=900, until_ms=6000, regions=("eu", "us"))
        _, left = await made.lift("token", "a", 3000, "root", "eu")
        assert left == record("a", 2001, before_ms=900, until_ms=6000, regions=("us",))
        _, lifted = await made.lift("token", "a", 4000, "root", "us")
        assert lifted.lifted_ms == 4000
        _, anew = await made.add(record("a", 5000, regions=("eu",)))
        assert anew == record("a", 5000, regions=("eu",))

    asyncio.run(run())
