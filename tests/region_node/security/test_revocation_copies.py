"""A region's own copy of what was revoked, and a configuration that was put back to an earlier one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from global_config.revocation_list import RevocationList
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import rows_under
from heliograph.model.configuration.revocations import REVOCATIONS, Revocation
from heliograph.model.errors import NotAllowed
from region_node.security.revocation_copies import COPIES, RevocationCopies
from tests.region_node.topics.fake_storage import FakeClock


class World:
    """Two brokers of one region."""

    def __init__(self) -> None:
        self.config, self.meta, self.clock = EmbeddedStore(), EmbeddedStore(), FakeClock()
        self.list = RevocationList(self.config)
        self.brokers = [RevocationCopies(self.config, self.meta, self.clock, retry_s=0.0) for _ in range(2)]

    async def settle(self) -> None:
        for _ in range(400):
            await asyncio.sleep(0)

    async def there(self) -> dict[str, Revocation]:
        return await _all(self.config, REVOCATIONS)

    async def here(self) -> dict[str, Revocation]:
        return await _all(self.meta, COPIES)


async def _all(store: EmbeddedStore, prefix: str) -> dict[str, Revocation]:
    return {key.removeprefix(prefix): Revocation.decode(value) for key, value, _ in await rows_under(store, prefix)}


def record(name: str, since_ms: int = 1000, **fields: int) -> Revocation:
    return Revocation(kind="token", name=name, since_ms=since_ms, **fields)


def with_world(test: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        for broker in world.brokers:
            await broker.start()
        try:
            await test(world)
        finally:
            for broker in world.brokers:
                await broker.stop()

    asyncio.run(run())


def test_what_is_added_and_lifted_there_is_so_here() -> None:
    async def test(world: World) -> None:
        for name in ("a", "b"):
            await world.list.add(record(name))
        await world.settle()
        assert await world.here() == await world.there() == {"token/a": record("a"), "token/b": record("b")}
        await world.list.lift("token", "a", 2000, "root")
        await world.settle()
        assert (await world.here())["token/a"].lifted_ms == 2000
        await world.config.delete(f"{REVOCATIONS}token/a")  # it was kept for long enough
        await world.settle()
        assert set(await world.here()) == set(await world.there()) == {"token/b"}

    with_world(test)


def test_what_an_older_configuration_lacks_is_put_back() -> None:
    async def test(world: World) -> None:
        await world.list.add(record("kept"))
        await world.list.add(record("later"))
        await world.list.lift("token", "kept", 2000, "root")
        await world.settle()
        was = await world.there()
        await world.config.delete(f"{REVOCATIONS}token/later")
        await world.config.put(f"{REVOCATIONS}token/kept", record("kept").encode())  # as before it was lifted
        await world.settle()
        assert await world.there() == await world.here() == was

    with_world(test)


def test_what_has_run_out_is_not_put_back() -> None:
    async def test(world: World) -> None:
        now_ms = world.clock.wall_ms()
        for name, until_ms in (("over", now_ms), ("good", now_ms + 1)):
            await world.list.add(record(name, until_ms=until_ms))
        await world.settle()
        for name in ("over", "good"):
            await world.config.delete(f"{REVOCATIONS}token/{name}")
        await world.settle()
        assert set(await world.there()) == set(await world.here()) == {"token/good"}

    with_world(test)


def test_a_store_that_is_away_is_asked_again() -> None:
    async def test(world: World) -> None:
        world.meta.unavailable = "it is away"
        await world.list.add(record("a"))
        await world.settle()
        world.meta.unavailable = None
        await world.settle()
        assert await world.here() == {"token/a": record("a")}

    with_world(test)


def test_what_a_newer_version_wrote_stays_as_it_is() -> None:
    async def test(world: World) -> None:
        newer = record("a").encode().replace(b'"format": 1', b'"format": 99')
        await world.meta.put(f"{COPIES}token/a", newer)
        await world.settle()
        assert await world.there() == {} and await world.meta.get(f"{COPIES}token/a") is not None

    with_world(test)


def test_what_another_region_has_to_put_back_holds_nothing_else_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        for name in ("a", "b"):
            await world.list.add(record(name))
        await world.list.lift("token", "a", 2000, "root")
        await world.settle()
        put = world.config.put

        async def refusing(key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
            if key.endswith("/a"):
                raise NotAllowed("eu revoked it: lift it there")
            return await put(key, value, expected=expected, lease=lease)

        monkeypatch.setattr(world.config, "put", refusing)
        await put(f"{REVOCATIONS}token/a", record("a").encode())  # as before it was lifted
        await world.config.delete(f"{REVOCATIONS}token/b")
        await world.settle()
        assert (await world.there())["token/b"] == record("b")

    with_world(test)


@pytest.mark.parametrize("prefix", (REVOCATIONS, COPIES))
def test_one_that_cannot_be_read_is_left_as_it_is_and_holds_nothing_else_up(prefix: str) -> None:
    """It counts neither as absent, which would put back what a newer version has lifted, nor as older."""

    async def test(world: World) -> None:
        await world.list.add(record("a"))
        await world.settle()
        newer = record("a", 2000).encode().replace(b'"format": 1', b'"format": 99')
        await (world.config if prefix == REVOCATIONS else world.meta).put(f"{prefix}token/a", newer)
        await world.settle()
        await world.list.add(record("b"))
        await world.settle()
        kept = await (world.config if prefix == REVOCATIONS else world.meta).get(f"{prefix}token/a")
        assert kept is not None and kept[0] == newer
        assert await world.meta.get(f"{COPIES}token/b") is not None

    with_world(test)
