"""One suite over both stores: in this process, and over real sockets (asyncio's loop and uvloop)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.kv.metadata_store import VALUE_BYTES_MAX, Check, Delete, MetadataStore, Put, pages_under, prefix_end
from heliograph.kv.server.metadata_server import MetaServer
from heliograph.kv.server.metadata_service import MetaService
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.model.errors import LeaseLost, MetadataUnavailable, NotAllowed, VersionConflict
from heliograph.runtime.clock import SystemClock
from region_node.security.certificate_authority import ensure_certificates
from region_node.security.tls import client_context, server_context
from tests.heliograph.kv.replica import LogReplica, SharedLog

Test = Callable[[MetadataStore], Coroutine[Any, Any, None]]


@pytest.fixture(params=["embedded", "sockets", "sockets with TLS", "sockets on uvloop"])
def over_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Test], None]:
    async def embedded(test: Test) -> None:
        store = EmbeddedStore()
        await test(store)
        store.close()

    async def sockets(test: Test) -> None:
        replica = LogReplica(SharedLog(), "m0", KvMachine())
        service = MetaService(replica, replica.machine, clock=SystemClock())
        replica.on_role_change = service.on_role_change
        replica.log.elect("m0")
        inside = outside = None
        if request.param == "sockets with TLS":
            folder = tmp_path_factory.mktemp("ca")
            ensure_certificates(folder, ["us"])
            material = (str(folder / "ca.pem"), str(folder / "config.us.pem"), str(folder / "config.us.key"))
            inside, outside = server_context(*material), client_context(*material)
        server = MetaServer(service, ssl=inside)
        port = await server.start()
        store = MetaClient([f"127.0.0.1:{port}"], clock=SystemClock(), rng=random.Random(1), ssl=outside)
        await test(store)
        store.close()
        await server.stop()
        await service.stop()

    def run(test: Test) -> None:
        if request.param == "embedded":
            asyncio.run(embedded(test))
        elif request.param != "sockets on uvloop":
            asyncio.run(sockets(test))
        else:
            pytest.importorskip("uvloop").run(sockets(test))

    return run


def test_keys_and_versions(over_store: Callable[[Test], None]) -> None:
    async def test(store: MetadataStore) -> None:
        assert await store.get("/a") is None
        first = await store.put("/a", b"1", expected=-1)
        second = await store.put("/a", b"2", expected=first)
        assert second > first and await store.get("/a") == (b"2", second)
        with pytest.raises(VersionConflict) as conflict:
            await store.put("/a", b"3", expected=first)
        assert (conflict.value.expected, conflict.value.actual) == (first, second)
        with pytest.raises(VersionConflict):
            await store.delete("/a", expected=first)
        third = await store.txn([Check("/a", second), Delete("/a"), Put("/b", b"x"), Put("/c", b"y", expected=-1)])
        assert await store.range("/", prefix_end("/")) == [("/b", b"x", third), ("/c", b"y", third)]
        assert await store.range("/", prefix_end("/"), limit=1) == [("/b", b"x", third)]
        assert await store.delete("/b") is True and await store.delete("/b") is False
        assert [await store.next_ids("n", 3), await store.next_ids("n"), await store.next_ids("n", at_least=9)] == [
            0,
            3,
            9,
        ]
        assert [await store.next_ids("n", 0), await store.next_ids("n", 0, at_least=50)] == [10, 50]
        assert [await store.next_ids("n"), await store.next_ids("other", 0)] == [10, 0]
        for wrong in (store.put("", b""), store.put("/a", bytes((1 << 20) + 1)), store.txn([]), store.grant(1)):
            with pytest.raises(NotAllowed):
                await wrong

    over_store(test)


def test_leases(over_store: Callable[[Test], None]) -> None:
    async def test(store: MetadataStore) -> None:
        for ttl_ms in (150, 1500, 15_000):
            key, gone = f"/l/{ttl_ms}", asyncio.Event()
            lease = await store.grant(ttl_ms)
            try:
                await store.put(key, b"", lease=lease)
                store.watch(key, lambda key, value, version, gone=gone: gone.set() if value is None else None)  # type: ignore[misc]
                await store.renew(lease)
                break
            except LeaseLost:  # this machine stood still for so long
                assert ttl_ms < 15_000
        async with asyncio.timeout(60):
            await gone.wait()
        assert await store.get(key) is None
        with pytest.raises(LeaseLost):
            await store.renew(lease)
        with pytest.raises(LeaseLost):
            await store.put("/l", b"", lease=lease)
        other = await store.grant(60_000)
        await store.put("/m", b"", lease=other)
        await store.revoke(other)
        await store.revoke(other)
        assert await store.get("/m") is None

    over_store(test)


def test_watches(over_store: Callable[[Test], None]) -> None:
    async def test(store: MetadataStore) -> None:
        await store.put("/w/1", b"1")
        told: list[tuple[str, bytes | None]] = []
        stop = store.watch("/w/", lambda key, value, version: told.append((key, value)))
        assert told == []
        await store.synced("/w/")
        assert told == [("/w/1", b"1")]
        await store.txn([Put("/w/2", b"2"), Put("/other", b""), Delete("/w/1")])
        await store.get("/w/2")
        assert told[1:] == [("/w/2", b"2"), ("/w/1", None)]
        stop()
        await store.put("/w/3", b"3")
        await store.get("/w/3")
        assert len(told) == 3 and store.stale_s() == 0

    over_store(test)


def test_keys_are_counted_by_their_first_three_parts(over_store: Callable[[Test], None]) -> None:
    async def test(store: MetadataStore) -> None:
        for number in range(5):
            await store.put(f"/ml/public/default/{number}", b"")
        await store.txn(
            [
                Put("/ml/public/defaults/0/more", b""),
                Delete("/ml/public/default/3"),
                Put("/ml/public/default/4", b"again"),
            ]
        )
        assert await store.count("/ml/public/default/") == 4 and await store.count("/ml/public/defaults/") == 1
        assert await store.count("/ml/public/absent/") == 0
        with pytest.raises(NotAllowed, match="first 3 parts"):
            await store.count("/ml/public/")

    over_store(test)


def test_a_closed_store_says_so(over_store: Callable[[Test], None]) -> None:
    async def test(store: MetadataStore) -> None:
        await store.put("/a", b"")
        store.close()
        with pytest.raises(MetadataUnavailable, match="closed"):
            await store.get("/a")

    over_store(test)


def test_a_page_ends_by_its_bytes(over_store: Callable[[Test], None]) -> None:
    async def test(store: MetadataStore) -> None:
        everything = [f"/k/{number}" for number in range(9)]
        for key in everything:
            await store.put(key, bytes(VALUE_BYTES_MAX))
        pages = [rows async for rows in pages_under(store, "/k/")]
        assert [[key for key, _, _ in rows] for rows in pages] == [everything[:4], everything[4:8], everything[8:]]
        assert len(await store.range("/k/", "/k0", limit=7)) == 7, "who says how many has that many"

    over_store(test)


@pytest.mark.parametrize(("served", "asked"), [(3, 3), (3, 10_000), (10_000, 3), (1, 4), (4, 1)])
def test_the_bound_of_a_range_is_given_to_machine_and_client_and_pages_pass_it(served: int, asked: int) -> None:
    """The machine's bound cuts an answer, and the client reads on; the client's own ends a range without a limit."""

    async def test(store: MetadataStore, bound: int) -> None:
        for number in range(10):
            await store.put(f"/k/{number}", b"v")
        everything = [f"/k/{number}" for number in range(10)]
        assert store.range_limit == bound
        assert [key for key, _, _ in await store.range("/k/", "/k0")] == everything[:bound]
        assert [key for key, _, _ in await store.range("/k/", "/k0", limit=7)] == everything[:7]
        for count in range(11):
            pages = [rows async for rows in pages_under(store, "/k/")]
            assert [key for rows in pages for key, _, _ in rows] == everything[count:]
            assert all(0 < len(rows) <= bound for rows in pages)
            if count < 10:
                await store.delete(f"/k/{count}")

    async def main() -> None:
        machine = KvMachine(settings=MachineSettings(range_limit=served))
        replica = LogReplica(SharedLog(), "m0", machine)
        service = MetaService(replica, machine, clock=SystemClock())
        replica.on_role_change = service.on_role_change
        replica.log.elect("m0")
        server = MetaServer(service)
        port = await server.start()
        settings = ClientSettings(range_limit=asked)
        store = MetaClient([f"127.0.0.1:{port}"], clock=SystemClock(), rng=random.Random(1), settings=settings)
        await test(store, asked)
        store.close()
        await server.stop()
        await service.stop()
        await test(EmbeddedStore(KvMachine(settings=MachineSettings(range_limit=served))), served)

    asyncio.run(main())
