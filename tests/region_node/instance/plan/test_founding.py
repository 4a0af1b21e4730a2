"""The regions that an instance begins with write themselves down, each for itself: in any order, at the same time, and
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from global_config import keys
from global_config.admin import ConfigAdmin
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo, TenantInfo
from heliograph.model.errors import ConfigError, HeliographError, NotAllowed, OutcomeUnknown
from region_node.instance.plan import founding

NUMBERS = {"eu": 1, "us": 2, "ap": 3}
ORDERS = pytest.mark.parametrize("order", list(permutations(NUMBERS)))


def info(name: str) -> RegionInfo:
    return RegionInfo(name=name, number=NUMBERS[name], service_url=f"pulsar://{name}:6650")


async def default(store: EmbeddedStore) -> tuple[list[str] | None, list[str] | None]:
    """The regions of the tenant, and of the namespace; None: it is not there."""
    tenant, namespace = await store.get(keys.tenant("public")), await store.get(keys.namespace("public/default"))
    return (
        None if tenant is None else sorted(TenantInfo.decode(tenant[0]).allowed_regions),
        None if namespace is None else sorted(NamespacePolicies.decode(namespace[0]).regions),
    )


ALL = (sorted(NUMBERS), sorted(NUMBERS))


@ORDERS
def test_whoever_comes_first_the_default_is_in_all_regions(order: Sequence[str]) -> None:
    async def main() -> None:
        store = EmbeddedStore()
        for count, name in enumerate(order, 1):
            await founding.found(store, info(name))
            assert await default(store) == (sorted(order[:count]), sorted(order[:count]))
        assert await default(store) == ALL
        written = await store.range("", "~")
        for name in order:
            await founding.found(store, info(name))
        assert await store.range("", "~") == written, "repeating it changes nothing"

    asyncio.run(main())


class Disturbed(EmbeddedStore):
    """Something happens before, or behind, the next transaction of this store."""

    before: Callable[[], Coroutine[Any, Any, None]] | None = None
    behind: type[HeliographError] | None = None

    async def txn(self, ops: Sequence[Op]) -> int:
        before, self.before = self.before, None
        if before is not None:
            await before()
        version = await super().txn(ops)
        behind, self.behind = self.behind, None
        if behind is not None:
            raise behind("the connection was lost")
        return version


@ORDERS
def test_regions_that_come_at_the_same_time_do_not_write_over_each_other(order: Sequence[str]) -> None:
    async def main() -> None:
        store = Disturbed()
        another, third = Disturbed(store.machine), Disturbed(store.machine)
        another.before = lambda: founding.found(third, info(order[2]))
        store.before = lambda: founding.found(another, info(order[1]))
        await founding.found(store, info(order[0]))
        assert await default(store) == ALL
        store = Disturbed()
        another = Disturbed(store.machine)
        await founding.found(store, info(order[0]))
        store.before = lambda: founding.found(another, info(order[1]))
        await founding.found(store, info(order[2]))
        assert await default(store) == ALL

    asyncio.run(main())


@ORDERS
def test_a_step_that_was_cut_off_is_gone_on_with(order: Sequence[str]) -> None:
    async def main() -> None:
        store = Disturbed()
        for name in order:
            store.behind = OutcomeUnknown
            with pytest.raises(OutcomeUnknown):
                await founding.found(store, info(name))
            await founding.found(store, info(name))
        assert await default(store) == ALL

    asyncio.run(main())


@ORDERS
def test_what_an_operator_has_changed_stays(order: Sequence[str]) -> None:
    async def main() -> None:
        store = EmbeddedStore()
        admin = ConfigAdmin(store)
        for name in order:
            await founding.found(store, info(name))
        out, left = order[0], sorted(order[1:])
        await admin.update_namespace(
            "public/default", lambda old: replace(old, regions=tuple(left), policies={"deduplication": True})
        )
        changed = await store.get(keys.namespace("public/default"))
        for name in order:
            await founding.found(store, replace(info(name), service_url=f"pulsar://{name}.example:6650"))
        assert await store.get(keys.namespace("public/default")) == changed, f"{out} was taken out on purpose"
        assert await default(store) == (sorted(order), left)
        row = await store.get(keys.region(out))
        assert row is not None and RegionInfo.decode(row[0]).service_url == f"pulsar://{out}.example:6650"
        await admin.update_tenant("public", TenantInfo(admin_roles=("boss",), allowed_regions=tuple(left)))
        await founding.found(store, info(out))
        assert await default(store) == (left, left)
        await admin.delete_namespace("public/default")
        await founding.found(store, info(out))
        assert await default(store) == (left, None)
        await admin.delete_tenant("public")
        for name in order:
            await founding.found(store, info(name))
        assert await default(store) == (None, None)

    asyncio.run(main())


@pytest.mark.parametrize("gone", ["namespace", "tenant"])
def test_a_later_region_does_not_bring_back_what_an_operator_has_deleted(gone: str) -> None:
    async def main() -> None:
        store = EmbeddedStore()
        admin = ConfigAdmin(store)
        await founding.found(store, info("eu"))
        await admin.delete_namespace("public/default")
        if gone == "tenant":
            await admin.delete_tenant("public")
        await founding.found(store, info("us"))
        assert await default(store) == (None if gone == "tenant" else ["eu", "us"], None)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["namespace", "tenant"])
@ORDERS
def test_a_later_region_does_not_enter_what_an_operator_has_bounded(order: Sequence[str], kind: str) -> None:
    async def main() -> None:
        store = EmbeddedStore()
        admin = ConfigAdmin(store)
        for name in order[:2]:
            await founding.found(store, info(name))
        only = (order[0],)
        await admin.update_namespace("public/default", lambda old: replace(old, regions=only))
        if kind == "tenant":
            await admin.update_tenant("public", TenantInfo(allowed_regions=only))
        await founding.found(store, info(order[2]))
        allowed = sorted(order) if kind == "namespace" else sorted(only)
        assert await default(store) == (allowed, sorted(only))

    asyncio.run(main())


def test_a_tenant_that_has_to_be_encrypted_takes_no_region_by_itself() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        await founding.found(store, info("eu"))
        sealed = TenantInfo(allowed_regions=("eu",), encryption_at_rest=True)
        await store.put(keys.tenant("public"), sealed.encode())
        await founding.found(store, info("us"))
        assert await default(store) == (["eu"], ["eu"])

    asyncio.run(main())


@ORDERS
def test_a_region_that_was_taken_out_of_the_instance_is_not_put_back(order: Sequence[str]) -> None:
    async def main() -> None:
        store = EmbeddedStore()
        admin = ConfigAdmin(store)
        for name in order:
            await founding.found(store, info(name))
        out, left = order[0], tuple(sorted(order[1:]))
        await admin.update_namespace("public/default", lambda old: replace(old, regions=left))
        await admin.update_tenant("public", TenantInfo(allowed_regions=left))
        await admin.delete_region(out)
        with pytest.raises(ConfigError, match=f"region {out} was taken out of this instance"):
            await founding.found(store, info(out))
        for name in left:
            await founding.found(store, info(name))
            await founding.check_stays(store, name, NUMBERS[name])
        assert await default(store) == (list(left), list(left)) and await store.get(keys.region(out)) is None

    asyncio.run(main())


def test_names_and_numbers_that_are_taken_are_refused() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        await founding.found(store, info("eu"))
        with pytest.raises(NotAllowed, match="number 1 was used before"):
            await founding.found(store, RegionInfo(name="sa", number=1))
        with pytest.raises(NotAllowed, match="region 'eu' has number 1; it cannot become 2"):
            await founding.found(store, RegionInfo(name="eu", number=2))
        assert await default(store) == (["eu"], ["eu"])

    asyncio.run(main())
