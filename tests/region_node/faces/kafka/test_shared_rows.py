"""SharedRows: what an earlier version has left in a region is moved, hidden, and deleted as what is shared."""

from __future__ import annotations

import asyncio
import random

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.kafka_users import KAFKA_USERS
from heliograph.model.errors import MetadataUnavailable
from region_node.faces.kafka.security.scram import ScramUsers
from region_node.faces.kafka.shared_rows import RowStores
from tests.region_node.faces.kafka.security.user_regions import KNOWN, OTHER, SHA, Regions


def test_what_an_earlier_version_kept_in_a_region_is_moved_once_all_of_it_know_the_place() -> None:
    async def run() -> None:
        regions = Regions()
        regions.shared.update(us=False, eu=False)
        us, eu = regions.users["us"], regions.users["eu"]
        for users in (us, eu):
            await users.put("ann", SHA, KNOWN)
        await us.put("bob", SHA, KNOWN)
        await eu.put("bob", SHA, OTHER)
        assert not regions.config.machine.under(KAFKA_USERS) and len(regions.own["us"].machine.under(KAFKA_USERS)) == 2
        for name in regions.shared:
            regions.shared[name] = True
            moving = asyncio.ensure_future(regions.users[name].rows.move())
            await asyncio.sleep(0.01)
            moving.cancel()
        assert not any(store.machine.under(KAFKA_USERS) for store in regions.own.values())
        assert (await eu.find(SHA, "bob")).by == "us", "the one that came first"
        assert await us.delete("ann", SHA)
        await asyncio.sleep(0)
        assert "ann" not in await eu.all()

    asyncio.run(run())


@pytest.mark.parametrize("act", ("put", "delete"))
def test_a_user_of_an_earlier_version_that_is_not_moved_yet_is_changed_in_both_places(act: str) -> None:
    async def run() -> None:
        regions = Regions()
        regions.shared["us"] = False
        us = regions.users["us"]
        await us.put("ann", SHA, KNOWN)
        regions.shared["us"] = True
        if act == "put":
            await us.put("ann", SHA, OTHER)
        else:
            assert await us.delete("ann", SHA)
        await asyncio.sleep(0)
        assert not regions.own["us"].machine.under(KAFKA_USERS)
        assert [user.salt for of_ann in (await us.all()).values() for user in of_ann.values()] == (
            [b"other"] if act == "put" else []
        )

    asyncio.run(run())


def test_nobody_signs_in_by_what_is_not_known_yet() -> None:
    class Silent(EmbeddedStore):
        async def synced(self, prefix: str) -> None:
            await asyncio.Event().wait()

    async def run() -> None:
        stores = RowStores(Silent(), EmbeddedStore(), lambda: True, sync_s=0.01)
        with pytest.raises(MetadataUnavailable, match="not known here yet"):
            await ScramUsers(stores, "us", random.Random(1), lambda _: False).find(SHA, "ann")

    asyncio.run(run())
