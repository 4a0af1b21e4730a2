"""A namespace, or a tenant, of several regions is deleted in all of them, or the refusal says how:
docs/operating/deletion.md.
"""

from __future__ import annotations

from functools import partial

import pytest

from heliograph.model.admin_paths import namespace_path
from tests.region_node.topics.serving.deleting_regions import (
    DAY_S,
    NAMESPACE,
    TOPIC,
    Region,
    asking,
    deletion,
    elapse,
    until,
    with_regions,
    without_grace,
)

PATH, TENANT = namespace_path(NAMESPACE), "/admin/v2/tenants/public"


async def filled(us: Region, eu: Region) -> None:
    assert (await us.create())[0] == 204
    await eu.published()


async def unseen(region: Region) -> bool:
    return not await region.listed()


async def unstored(region: Region) -> bool:
    return not await region.stored()


async def listed(region: Region) -> bool:
    return await region.listed() == [TOPIC]


async def gone(region: Region) -> bool:
    return NAMESPACE not in (await region.rest("GET", "/admin/v2/namespaces/public"))[1]


def test_by_force_it_is_deleted_in_every_region_and_can_be_brought_back() -> None:
    async def test(us: Region, eu: Region) -> None:
        await filled(us, eu)
        assert await us.rest("DELETE", f"{PATH}?force=true") == (204, None)
        for region in (us, eu):
            await until(partial(unseen, region), "no topic of it is seen")
            assert await region.stored() == [TOPIC]
            assert (await region.rest("GET", PATH))[1]["deleted"] is True
        assert (await us.rest("DELETE", f"{PATH}?force=true"))[0] == 404
        status, answer = await us.rest("PUT", PATH)
        assert status == 409 and "undelete" in answer["reason"] and "--grace 0" in answer["reason"]
        assert await eu.undelete(NAMESPACE) == 204
        for region in (us, eu):
            await until(partial(listed, region), "it is back")

    with_regions(test)


@pytest.mark.parametrize("away", [False, True])
def test_its_data_goes_everywhere_and_its_name_is_free_once_it_has(away: bool) -> None:
    async def test(us: Region, eu: Region) -> None:
        await filled(us, eu)
        await without_grace(us)
        assert (await us.rest("DELETE", f"{PATH}?force=true"))[0] == 204
        if away:
            await until(partial(unstored, us), "us purges its copy")
            status, answer = await us.rest("PUT", PATH)
            assert status == 409 and "eu still has it" in answer["reason"]
            await eu.hear()
        for region in (us, eu):
            await until(partial(gone, region), "it is gone")
            assert not await region.stored()
        assert (await us.rest("PUT", PATH))[0] == 204

    with_regions(test, heard=not away)


def test_without_force_it_is_refused_while_any_region_has_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(us: Region, eu: Region) -> None:
        asking(monkeypatch, us, eu)
        await eu.published()
        status, answer = await us.rest("DELETE", PATH)
        assert status == 409 and "1 topics in eu" in answer["reason"]
        for forced in ("", "?force=true"):
            status, answer = await us.rest("DELETE", f"{TENANT}{forced}")
            assert status == 409, "a tenant takes along no namespace that other regions have topics of"
        assert await eu.listed() == [TOPIC]

    with_regions(test)


def test_where_all_was_deleted_before_it_goes_with_that_and_its_tenant_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As tools do that take down what they have set up: topics, namespaces, tenants."""

    async def test(us: Region, eu: Region) -> None:
        asking(monkeypatch, us, eu)
        await filled(us, eu)
        assert (await us.rest("PUT", deletion(TOPIC), {"grace_s": 2 * DAY_S}))[0] == 200
        assert await us.rest("DELETE", PATH) == (204, None)
        status, answer = await us.rest("DELETE", f"{TENANT}?force=true")
        assert status == 409 and f"`heliograph dr delete {NAMESPACE} --grace 0`" in answer["reason"]
        (whole, _), (topic, _) = (us.tombstones.known[name] for name in (NAMESPACE, TOPIC))
        assert whole.until_ms >= topic.until_ms, "what was deleted before it can be brought back as long as it could"
        await elapse((us, eu), 2 * DAY_S + 1)
        for region in (us, eu):
            await until(partial(gone, region), "it is gone")
        assert (await us.rest("DELETE", TENANT))[0] == 204

    with_regions(test)


def test_one_that_is_empty_everywhere_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(us: Region, eu: Region) -> None:
        asking(monkeypatch, us, eu)
        assert (await us.rest("DELETE", f"{TENANT}?force=true"))[0] == 204
        assert not us.tombstones.known

    with_regions(test)


def test_one_of_a_single_region_goes_at_once() -> None:
    async def test(us: Region, eu: Region) -> None:
        assert (await us.create())[0] == 204
        assert (await us.rest("DELETE", f"{PATH}?force=true"))[0] == 204
        assert not us.tombstones.known and not await us.stored() and await gone(us)

    with_regions(test, namespace=["us"])


def test_one_bundle_alone_is_refused() -> None:
    """Regions divide a namespace by bundles of their own."""

    async def test(us: Region, eu: Region) -> None:
        await filled(us, eu)
        answers = [await us.rest("DELETE", f"{PATH}/{bundle}?force=true") for bundle in BUNDLES]
        assert sorted(status for status, _ in answers) == [204, 204, 204, 412], answers
        assert await us.listed() == await eu.listed() == [TOPIC]

    with_regions(test)


BUNDLES = ("0x00000000_0x40000000", "0x40000000_0x80000000", "0x80000000_0xc0000000", "0xc0000000_0xffffffff")
