"""ACLs of a tenant: all at once by compare-and-set, bounded, and gone with what they are about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from global_config import keys
from global_config.acl_writes import BYTES_MAX, RECORDS_MAX
from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op
from heliograph.model.configuration.acl_records import AclRecord, TenantAcls
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.model.errors import CorruptData, NotAllowed, NotFound


def record(name: str = "persistent://t/n/x", resource: str = "topic", pattern: str = "literal") -> AclRecord:
    return AclRecord(resource, pattern, name, "a", "*", "read", False)


def with_config(
    test: Callable[[ConfigAdmin, ConfigView, EmbeddedStore], Awaitable[None]], given: EmbeddedStore | None = None
) -> None:
    async def run() -> None:
        store = given or EmbeddedStore()
        admin, view = ConfigAdmin(store), ConfigView(store)
        await admin.create_region("us")
        await admin.create_tenant("t", TenantInfo(allowed_regions=("us",)))
        await admin.create_namespace("t/n", NamespacePolicies(regions=("us",)))
        await test(admin, view, store)
        view.close()

    asyncio.run(run())


async def put(admin: ConfigAdmin, *records: AclRecord) -> tuple[AclRecord, ...]:
    return await admin.acls.change("t", lambda before: (*before, *records))


def test_what_is_written_is_read_once_and_in_order_and_another_tenant_has_none() -> None:
    async def test(admin: ConfigAdmin, view: ConfigView, store: EmbeddedStore) -> None:
        one, two = record(), record("g", "group", "prefixed")
        assert await put(admin, one, two, one) == ()
        await asyncio.sleep(0)
        assert view.acls("t") == (two, one) and view.acls("u") == ()
        found = await store.get(keys.acls("t"))
        assert found is not None and await put(admin, one) == (two, one)
        assert await store.get(keys.acls("t")) == found, "nothing new is not written"
        assert await admin.acls.change("t", lambda _: ()) == (two, one)
        assert await store.get(keys.acls("t")) is None
        with pytest.raises(NotFound):
            await admin.acls.change("u", lambda _: (one,))

    with_config(test)


def test_changes_at_once_lose_nothing() -> None:
    async def test(admin: ConfigAdmin, view: ConfigView, store: EmbeddedStore) -> None:
        await asyncio.gather(*(put(admin, record(f"persistent://t/n/{n}")) for n in range(5)))
        await asyncio.sleep(0)
        assert len(view.acls("t")) == 5

    with_config(test)


@pytest.mark.parametrize(("most", "padding"), [(RECORDS_MAX, 0), (BYTES_MAX // 2_048, 1_950)])
def test_there_may_be_so_many_and_fewer_are_always_taken(most: int, padding: int) -> None:
    async def test(admin: ConfigAdmin, view: ConfigView, store: EmbeddedStore) -> None:
        records = [record(f"persistent://t/n/{n:04}{'x' * padding}") for n in range(most + 10)]
        await put(admin, *records[:most])
        with pytest.raises(NotAllowed, match="prefix"):
            await put(admin, *records[most:])
        value, version = await store.get(keys.acls("t")) or (b"", 0)
        assert TenantAcls.decode(value).records == tuple(records[:most])
        more = TenantAcls(records=tuple(records)).encode()  # an earlier version may have taken more
        assert len(records) > RECORDS_MAX or len(more) > BYTES_MAX >= len(value)
        await store.put(keys.acls("t"), more, expected=version)
        await admin.acls.change("t", lambda before: before[1:])
        with pytest.raises(NotAllowed, match="prefix"):
            await put(admin, record("persistent://t/n/more"))
        await asyncio.sleep(0)
        assert view.acls("t") == tuple(records[1:])

    with_config(test)


def test_they_end_with_their_namespace_and_their_tenant() -> None:
    async def test(admin: ConfigAdmin, view: ConfigView, store: EmbeddedStore) -> None:
        await admin.create_namespace("t/nn", NamespacePolicies(regions=("us",)))
        left = [record("g", "group"), record("persistent://t/nn/x"), record("t/nn", pattern="all")]
        await put(admin, *left, record(), record("persistent://t/n/", pattern="prefixed"), record("t/n", pattern="all"))
        await admin.delete_namespace("t/n")
        await asyncio.sleep(0)
        assert sorted(view.acls("t")) == sorted(left)
        await admin.delete_namespace("t/nn")
        await admin.delete_tenant("t")
        await asyncio.sleep(0)
        assert view.acls("t") == ()

    with_config(test)


class Between(EmbeddedStore):
    """`first` is done in front of the next transaction."""

    first: Callable[[], Awaitable[object]] | None = None

    async def txn(self, ops: Sequence[Op]) -> int:
        if (first := self.first) is not None:
            self.first = None
            await first()
        return await super().txn(ops)


@pytest.mark.parametrize("others", [False, True])
def test_no_acl_outlives_the_namespace_that_is_deleted_while_it_is_made(others: bool) -> None:
    async def test(admin: ConfigAdmin, view: ConfigView, store: EmbeddedStore) -> None:
        assert isinstance(store, Between)
        there = (record("g", "group"),) if others else ()
        await put(admin, *there)
        store.first = lambda: admin.delete_namespace("t/n")
        with pytest.raises(NotFound, match="namespace 't/n'"):
            await put(admin, record())
        await admin.create_namespace("t/n", NamespacePolicies(regions=("us",)))
        store.first = lambda: put(admin, record())
        await admin.delete_namespace("t/n")
        await asyncio.sleep(0)
        assert view.namespace("t/n") is None and view.acls("t") == there

    with_config(test, Between())


def test_an_acl_of_a_namespace_that_is_not_there_is_refused_and_one_that_is_there_can_go() -> None:
    async def test(admin: ConfigAdmin, view: ConfigView, store: EmbeddedStore) -> None:
        names = ("persistent://t/no/x", "literal"), ("persistent://t/no/", "prefixed"), ("t/no", "all")
        for each in (record(name, pattern=pattern) for name, pattern in names):
            with pytest.raises(NotFound, match="namespace 't/no' does not exist"):
                await put(admin, record(), each)
        assert await store.get(keys.acls("t")) is None
        left = TenantAcls(records=(record("persistent://t/no/x"),))
        await store.put(keys.acls("t"), left.encode())
        await put(admin, record())
        await admin.acls.change("t", lambda before: tuple(each for each in before if each != record()))
        await asyncio.sleep(0)
        assert view.acls("t") == left.records, "what was there is nobody's fault"
        assert await admin.acls.change("t", lambda _: ()) == left.records

    with_config(test)


def test_what_an_earlier_version_has_left_behind_does_not_open_a_new_namespace_or_tenant() -> None:
    async def test(admin: ConfigAdmin, view: ConfigView, store: EmbeddedStore) -> None:
        group, of_old = record("g", "group"), record("persistent://t/old/x")
        await store.put(keys.acls("t"), TenantAcls(records=(group, of_old)).encode())
        await admin.create_namespace("t/old", NamespacePolicies(regions=("us",)))
        await store.put(keys.acls("gone"), TenantAcls(records=(group,)).encode())
        await admin.create_tenant("gone", TenantInfo(allowed_regions=("us",)))
        await asyncio.sleep(0)
        assert view.acls("t") == (group,) and view.acls("gone") == ()
        await put(admin, of_old)
        await admin.update_namespace("t/old", lambda found: replace(found, policies={"compactionThreshold": 1}))
        await asyncio.sleep(0)
        assert view.acls("t") == (group, of_old), "only what was there before it"

    with_config(test)


@pytest.mark.parametrize(
    "wrong",
    [
        ["topic", "literal", "x", "a", "*", "fly", True],
        ["topic", "regex", "x", "a", "*", "read", True],
        ["disk", "literal", "x", "a", "*", "read", True],
        ["topic", "literal", "x", "a", "*", "read"],
    ],
)
def test_a_value_with_a_record_that_is_not_understood_is_not_read(wrong: list[object]) -> None:
    good = TenantAcls(records=(record(),))
    assert TenantAcls.decode(good.encode()) == good
    with pytest.raises(CorruptData):
        TenantAcls.decode(b'{"format": 1, "records": [%s]}' % str(wrong).replace("'", '"').replace("T", "t").encode())


def test_acls_that_were_never_read_are_not_none_and_those_read_last_count_where_they_can_be_read_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(admin: ConfigAdmin, view: ConfigView, store: EmbeddedStore) -> None:
        heard: list[str] = []
        view.on_change(heard.append)
        key = keys.acls("t")
        await store.put(key, b'{"format": 99}')
        await asyncio.sleep(0)
        late = ConfigView(store)
        await late.ready()
        assert view.acls("t") is None and late.acls("t") is None and view.acls("u") == ()
        assert heard[-1] == key and key in view.broken, "what is open is looked at again"
        for call in (put(admin, record()), admin.delete_namespace("t/n")):
            with pytest.raises(CorruptData, match=r"cannot be read .* upgrade .* damaged"):
                await call
        first, second = (line for line in caplog.records if line.levelname == "ERROR")
        assert first.msg == second.msg == "config.acls_unreadable" and "upgrade" in vars(first)["error"]
        await store.put(key, TenantAcls(records=(record(),)).encode())
        await asyncio.sleep(0)
        assert view.acls("t") == late.acls("t") == (record(),) and not view.broken
        await store.put(key, b"?")
        await asyncio.sleep(0)
        assert view.acls("t") == (record(),) and key in view.broken
        assert await admin.acls.drop_unreadable("t") and not await admin.acls.drop_unreadable("t")
        await asyncio.sleep(0)
        assert view.acls("t") == () and not view.broken
        late.close()

    with_config(test)
