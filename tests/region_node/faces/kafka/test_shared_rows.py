"""SharedRows: what an earlier version has left in a region is moved, hidden, and deleted as what is shared."""

from __future__ import annotations

import asyncio
import random
from typing import Any

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
        assert await eu.find(SHA, "bob") == KNOWN, "the one that came first"
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
        stores = RowStores(Silent(), EmbeddedStore(), lambda: True, lambda: True, sync_s=0.01)
        with pytest.raises(MetadataUnavailable, match="not known here yet"):
            await ScramUsers(stores, random.Random(1), lambda _: False).find(SHA, "ann")

    asyncio.run(run())


@pytest.mark.parametrize("act", ("put", "delete"))
def test_a_region_that_has_an_older_process_changes_what_is_shared_too(act: str) -> None:
    """Its newer brokers go by the shared one: an old password would be right on there."""

    async def run() -> None:
        regions = Regions()
        regions.shared["eu"] = False
        us, eu = regions.users["us"], regions.users["eu"]
        await us.put("ann", SHA, KNOWN)
        await asyncio.sleep(0)
        if act == "put":
            await eu.put("ann", SHA, OTHER)
        else:
            assert await eu.delete("ann", SHA)
        await asyncio.sleep(0)
        for users in (us, eu):
            assert (await users.find(SHA, "ann")).salt == b"other" if act == "put" else "ann" not in await users.all()
        assert bool(regions.own["eu"].machine.under(KAFKA_USERS)) == (act == "put"), "where older ones look"

    asyncio.run(run())


def test_what_is_deleted_is_not_moved_again_by_a_region_that_comes_later() -> None:
    async def run() -> None:
        regions = Regions()
        regions.shared.update(us=False, eu=False)
        us, eu = regions.users["us"], regions.users["eu"]
        for users in (us, eu):
            await users.put("ann", SHA, KNOWN)
        regions.shared["us"] = True
        assert await us.delete("ann", SHA) and not await us.delete("ann", SHA)
        await asyncio.sleep(0)
        assert "ann" not in await eu.all(), "it counts nowhere any more"
        regions.shared["eu"] = True
        await eu.rows._move_all()
        await asyncio.sleep(0)
        assert "ann" not in await us.all() and not regions.own["eu"].machine.under(KAFKA_USERS)
        await us.put("ann", SHA, OTHER)
        await asyncio.sleep(0)
        assert await eu.find(SHA, "ann") == OTHER

    asyncio.run(run())


def test_what_is_deleted_while_it_is_moved_stays_so() -> None:
    async def run() -> None:
        regions = Regions()
        regions.shared.update(us=False, eu=False)
        us, put = regions.users["us"], regions.config.put
        await us.put("ann", SHA, KNOWN)
        regions.shared.update(us=True, eu=True)

        async def late(key: str, value: bytes, **more: Any) -> int:
            regions.config.put = put  # type: ignore[method-assign]
            assert await us.delete("ann", SHA)
            return await put(key, value, **more)

        regions.config.put = late  # type: ignore[method-assign]
        await us.rows._move_all()
        await asyncio.sleep(0)
        assert not await us.all() and not regions.config.machine.under(KAFKA_USERS)

    asyncio.run(run())
