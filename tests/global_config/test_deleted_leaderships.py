"""A namespace that is made again begins above the epochs of the one before."""

from __future__ import annotations

import asyncio

import pytest

from global_config.admin import ConfigAdmin
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.model.configuration.leadership import DELETED, DRAINING, ENDED, leadership
from region_node.dr.leadership.leadership_changes import Switching, closing

N = "t/n"


@pytest.mark.parametrize("ended", [False, True])
def test_no_epoch_comes_again_where_a_namespace_is_made_again(ended: bool) -> None:
    async def main() -> None:
        store = EmbeddedStore()
        admin, switching = ConfigAdmin(store), Switching(store, lambda: 5)
        for region in ("us", "eu"):
            await admin.create_region(region)
        await admin.create_tenant("t", TenantInfo(allowed_regions=("us", "eu")))

        async def life() -> int:
            await admin.create_namespace(N, NamespacePolicies(regions=("us", "eu")))
            first = (await switching.begin(N, "us", {})).epoch
            await switching.change(N, lambda old: closing(old, "eu", DRAINING, 0))
            moved, _ = await switching.flip(N, "eu", regions=())
            assert moved is not None and moved.epoch == first + 1
            if ended:
                await switching.end(N)
            await admin.delete_namespace(N)
            assert await store.get(leadership(N)) is None and await store.get(ENDED + N) is None
            return first

        assert [await life() for _ in range(3)] == [1, 3, 5]
        await admin.create_namespace(N, NamespacePolicies(regions=("us", "eu")))
        await admin.delete_namespace(N)
        found = await store.get(DELETED)
        assert found is not None and found[0] == b"6"

    asyncio.run(main())
