"""What several regions have is deleted in all of them by whichever tool, can be brought back, and does not come back by
itself: docs/operating/deletion.md, row by row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest

from heliograph.model.admin_paths import SUBSCRIPTION, dr_path, namespace_path, path_of, topic_path
from heliograph.model.errors import NotFound
from heliograph.model.positions import AFTER_ALL
from heliograph.model.topic_names import TopicName
from region_node.faces.kafka.error_codes import Code
from region_node.replication.replicated_subscriptions import replicate
from region_node.topics.serving.loaded_topics import Loaded
from region_node.topics.topic import Topic
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

Delete = Callable[[Region], Awaitable[None]]


async def by_rest(region: Region) -> None:
    assert await region.delete() == (204, None)


async def of_partitions_by_rest(region: Region) -> None:
    assert await region.delete(partitioned=True) == (204, None)


async def by_kafka(region: Region) -> None:
    assert await region.delete_by_kafka() == (0, "")


async def filled(us: Region, eu: Region, partitions: int) -> list[str]:
    """Returns the full names of what both have then."""
    assert (await us.create(partitions=partitions))[0] == 204
    name = TopicName.parse(TOPIC)
    parts = [str(name.with_partition(index)) for index in range(partitions)] or [TOPIC]
    for part in parts:
        for region in (us, eu):
            await region.published(part)
    return parts


WAYS = [
    pytest.param(by_rest, 0, id="rest"),
    pytest.param(of_partitions_by_rest, 2, id="rest-partitioned"),
    pytest.param(by_kafka, 2, id="kafka"),
    pytest.param(by_kafka, 0, id="kafka-plain"),
]


@pytest.mark.parametrize(("delete", "partitions"), WAYS)
def test_the_stock_deletion_is_of_every_region_and_can_be_undone(delete: Delete, partitions: int) -> None:
    async def test(us: Region, eu: Region) -> None:
        parts = await filled(us, eu, partitions)
        await delete(us)
        for region in (us, eu):
            await until(partial(gone, region), "nobody sees it")
            assert await region.stored() == parts, "its data stays until the grace period has ended"
            assert not any(part in region.topics.loaded for part in parts)
        assert await eu.undelete() == 204
        for region in (us, eu):
            await until(partial(back, region, parts), "it is back with all of it")

    with_regions(test)


async def gone(region: Region) -> bool:
    partitioned = (await region.rest("GET", f"/admin/v2/persistent/{NAMESPACE}/partitioned"))[1]
    return not await region.listed() and not partitioned and not await region.listed_by_kafka()


async def back(region: Region, parts: list[str]) -> bool:
    return await region.listed() == parts and await region.listed_by_kafka() == ["orders"]


@pytest.mark.parametrize(("delete", "partitions"), WAYS)
def test_its_data_goes_everywhere_when_the_grace_period_has_ended_and_then_its_name_is_free(
    delete: Delete, partitions: int
) -> None:
    async def test(us: Region, eu: Region) -> None:
        await filled(us, eu, partitions)
        await delete(us)
        await elapse((us, eu), DAY_S + 1)
        for region in (us, eu):
            await until(partial(purged, region), "its copy goes")
        await until(lambda: made(eu, partitions), "the name is free")

    with_regions(test)


async def purged(region: Region) -> bool:
    return not await region.stored()


async def made(region: Region, partitions: int) -> bool:
    status, answer = await region.create(partitions=partitions)
    assert status == 204 or (status == 409 and "its data goes" in answer["reason"]), (status, answer)
    return status == 204


@pytest.mark.parametrize(("delete", "partitions"), WAYS)
def test_a_region_that_was_away_purges_when_it_is_back_and_keeps_the_name_taken_until_then(
    delete: Delete, partitions: int
) -> None:
    async def test(us: Region, eu: Region) -> None:
        parts = await filled(us, eu, partitions)
        await without_grace(us)
        await delete(us)
        await until(lambda: purged(us), "us purges its copy")
        assert await eu.stored() == parts, "eu has not heard"
        status, answer = await us.create(partitions=partitions)
        assert status == 409 and "eu still has it" in answer["reason"], answer
        code, why = await us.create_by_kafka()
        assert code == Code.TOPIC_ALREADY_EXISTS and "eu still has it" in why
        await eu.hear()
        await until(lambda: purged(eu), "eu purges its own")
        await until(lambda: made(us, partitions), "the name is free")

    with_regions(test, heard=False)


@pytest.mark.parametrize(("delete", "partitions"), WAYS)
def test_who_makes_the_same_name_again_hears_what_to_do(delete: Delete, partitions: int) -> None:
    async def test(us: Region, eu: Region) -> None:
        await filled(us, eu, partitions)
        await delete(us)
        for count in (0, 3):
            status, answer = await us.create(partitions=count)
            assert status == 409, answer
            assert f"`heliograph dr undelete {TOPIC}`" in answer["reason"]
            assert f"`heliograph dr delete {TOPIC} --grace 0`" in answer["reason"]
        code, why = await us.create_by_kafka()
        assert code == Code.TOPIC_ALREADY_EXISTS and "undelete" in why and "--grace 0" in why
        assert (await us.rest("PUT", deletion(TOPIC), {"grace_s": 0}))[0] == 200, "what the sentence says"
        await until(lambda: made(us, partitions), "the name is free")

    with_regions(test)


def test_what_is_deleted_is_not_there_for_a_second_deletion() -> None:
    async def test(us: Region, eu: Region) -> None:
        await filled(us, eu, 2)
        await of_partitions_by_rest(us)
        assert (await us.delete(partitioned=True))[0] == 404
        assert (await us.delete_by_kafka())[0] == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert (await us.rest("GET", f"{topic_path(TOPIC)}/partitions"))[0] == 404
        assert (await us.rest("PUT", deletion(TOPIC), {"grace_s": DAY_S * 9}))[0] == 409, "it ends no later by that"

    with_regions(test)


def test_what_is_being_opened_as_it_is_deleted_is_not_handed_out() -> None:
    """Nothing looks at it a second time: what is loaded is unloaded once, when the deletion is heard."""

    async def test(us: Region, eu: Region) -> None:
        await filled(us, eu, 0)
        await us.topics.unload(TOPIC)
        factory, began, goes_on = us.face.factory, asyncio.Event(), asyncio.Event()
        opened = factory.open

        async def slow(*args: Any, **kwargs: Any) -> Any:
            found = await opened(*args, **kwargs)
            began.set()
            await goes_on.wait()
            return found

        factory.open = slow  # type: ignore[method-assign]
        loading = asyncio.ensure_future(us.topics.get(TOPIC, create=True))
        await began.wait()
        await by_rest(eu)
        await until(lambda: gone(us), "us has heard")
        goes_on.set()
        with pytest.raises(NotFound, match="undelete"):
            await loading
        assert not us.topics.loaded

    with_regions(test)


@pytest.mark.parametrize("count", [1, 40])
def test_however_many_are_deleted_at_once_what_is_loaded_is_gone_through_once(count: int) -> None:
    async def test(us: Region, eu: Region) -> None:
        names = [f"{TOPIC}-{index}" for index in range(50)]
        parts = [str(TopicName.parse(name).with_partition(1)) for name in names]
        for name in (*names, *parts):
            await us.published(name)
        went_through = list[str]()

        class Seen(Loaded):
            __slots__ = ()

            def of(self, namespace: str) -> list[Topic]:
                went_through.append(namespace)
                return super().of(namespace)

        us.topics.loaded.__class__ = Seen
        await us.topics.unload_deleted(names[:count])
        assert went_through == [NAMESPACE]
        assert sorted(us.topics.loaded) == sorted(names[count:] + parts[count:])

    with_regions(test)


@pytest.mark.parametrize("partitions", [0, 2])
def test_without_force_it_is_refused_while_clients_of_the_region_that_is_asked_use_it(partitions: int) -> None:
    async def test(us: Region, eu: Region) -> None:
        parts = await filled(us, eu, partitions)
        await eu.connect(parts[-1])
        await us.connect(parts[-1])
        status, answer = await us.delete(partitioned=bool(partitions))
        assert status == 412 and "connected producer" in answer["reason"], answer
        assert await eu.listed() == parts
        assert (await us.delete(partitioned=bool(partitions), query="?force=true"))[0] == 204
        await until(lambda: gone(eu), "also those of eu are closed")

    with_regions(test)


@pytest.mark.parametrize(("delete", "partitions"), WAYS)
def test_where_the_configuration_has_no_majority_nothing_is_deleted(delete: Delete, partitions: int) -> None:
    async def test(us: Region, eu: Region) -> None:
        parts = await filled(us, eu, partitions)
        us.store.unavailable = "no majority of the configuration answers"
        if delete is by_kafka:
            code, why = await us.delete_by_kafka()
            assert code == Code.REQUEST_TIMED_OUT and "majority" in why
        else:
            status, answer = await us.delete(partitioned=bool(partitions))
            assert status == 503 and "majority" in answer["reason"]
        us.store.unavailable = None
        for region in (us, eu):
            assert await region.listed() == parts

    with_regions(test)


@pytest.mark.parametrize(("delete", "partitions"), WAYS)
def test_what_one_region_alone_has_goes_at_once(delete: Delete, partitions: int) -> None:
    async def test(us: Region, eu: Region) -> None:
        assert (await us.create(partitions=partitions))[0] == 204
        await delete(us)
        assert not await us.stored() and not us.tombstones.known
        assert (await us.create(partitions=partitions))[0] == 204

    with_regions(test, namespace=["us"])


def test_a_region_that_was_taken_out_has_its_copy_deleted_as_well() -> None:
    """Put back into the list, it would bring the topic back."""

    async def test(us: Region, eu: Region) -> None:
        await filled(us, eu, 0)
        assert (await us.rest("POST", f"{namespace_path(NAMESPACE)}/replication", ["us"]))[0] == 204
        await without_grace(us)
        await by_rest(us)
        await until(lambda: purged(eu), "the copy that nobody serves")
        assert (await us.rest("POST", f"{namespace_path(NAMESPACE)}/replication", ["us", "eu"]))[0] == 204
        assert not await eu.listed()

    with_regions(test)


def test_a_topic_that_a_policy_keeps_in_one_region_is_deleted_in_all_of_its_namespace() -> None:
    """What the others had got before the policy, they have still."""

    async def test(us: Region, eu: Region) -> None:
        await filled(us, eu, 0)
        assert (await us.rest("POST", f"{topic_path(TOPIC)}/replication", ["us"]))[0] == 204
        await without_grace(us)
        await by_rest(us)
        await until(lambda: purged(eu), "what eu had of it")

    with_regions(test)


def test_a_topic_that_a_policy_has_in_more_regions_than_its_namespace_is_deleted_in_all_of_them() -> None:
    async def test(us: Region, eu: Region) -> None:
        await filled(us, eu, 0)
        assert (await us.rest("POST", f"{topic_path(TOPIC)}/replication", ["us", "eu"]))[0] == 204
        await without_grace(us)
        await by_rest(us)
        await until(lambda: purged(eu), "its copy in eu")

    with_regions(test, namespace=["us"])


def test_one_partition_alone_is_refused_and_what_to_do_is_said() -> None:
    async def test(us: Region, eu: Region) -> None:
        parts = await filled(us, eu, 2)
        status, answer = await us.delete(parts[0])
        assert status == 412 and TOPIC in answer["reason"] and "onlyHere=true" in answer["reason"]
        assert await us.listed() == parts

    with_regions(test)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_topic_that_is_made_again_has_none_of_a_region_s_policies_of_the_one_before(
    partitions: int, whole: bool
) -> None:
    async def test(us: Region, eu: Region) -> None:
        await filled(us, eu, partitions)
        other = f"{TOPIC}-2"
        for region in (us, eu):
            for topic in (TOPIC, other):
                await region.topics.policies.change_topic(topic, lambda old: replace(old, policies={"messageTTL": 60}))
        assert (await us.rest("PUT", deletion(NAMESPACE if whole else TOPIC), {"grace_s": 0}))[0] == 200
        await until(partial(freed, us), "all regions have purged it")
        for region in (us, eu):
            assert not await region.stored()
            assert not region.topics.policies.topic(TOPIC).policies
            assert bool(region.topics.policies.topic(other).policies) != whole, "another topic's stay"

    with_regions(test)


async def freed(region: Region) -> bool:
    return not region.tombstones.known


async def by_dr(region: Region) -> None:
    assert (await region.rest("PUT", deletion(TOPIC), {"grace_s": 0}))[0] == 200


@pytest.mark.parametrize("delete", [of_partitions_by_rest, by_kafka, by_dr])
def test_partitions_that_who_deletes_does_not_count_go_with_the_topic(delete: Delete) -> None:
    """Another region has given it more, or the configuration came back from an older state: made again, the topic
    would have their old messages.
    """

    async def test(us: Region, eu: Region) -> None:
        parts = [f"{TOPIC}-partition-{index}" for index in range(4)]
        for part in parts:
            await eu.published(part)
        await eu.published(f"{TOPIC}s-partition-0")
        await us.face.admin.create_partitioned(TOPIC, 2)
        await without_grace(us)
        await delete(us)
        await until(partial(purged_of, eu, parts), "all of them go")
        assert await eu.stored() == [f"{TOPIC}s-partition-0"], "another topic's stays"

    with_regions(test)


async def purged_of(region: Region, names: list[str]) -> bool:
    return not set(await region.stored()).intersection(names)


@pytest.mark.parametrize("delete", [of_partitions_by_rest, by_kafka, by_dr])
def test_a_name_of_both_kinds_goes_whole(delete: Delete) -> None:
    """The plain topic of one region would come back, and its link bring it to the other."""

    async def test(us: Region, eu: Region) -> None:
        await us.published()
        await eu.published(f"{TOPIC}-partition-0")
        await eu.face.admin.create_partitioned(TOPIC, 2)
        await without_grace(us)
        await delete(us)
        for region in (us, eu):
            await until(partial(purged, region), "its copy goes, of either kind")

    with_regions(test)


def test_a_client_of_the_plain_topic_of_a_partitioned_one_s_name_keeps_both() -> None:
    async def test(us: Region, eu: Region) -> None:
        await us.published()
        await us.connect()
        await us.face.admin.create_partitioned(TOPIC, 2)
        status, answer = await us.delete(partitioned=True)
        assert status == 412 and "connected producer" in answer["reason"], answer

    with_regions(test)


PART = f"{TOPIC}-partition-0"


@pytest.mark.parametrize("tool", ["rest", "dr"])
def test_a_partition_that_no_topic_declares_is_deleted_by_its_own_name(tool: str) -> None:
    """Clients make such as Pulsar allows, and the number of partitions may be lost."""

    async def test(us: Region, eu: Region) -> None:
        for region in (us, eu):
            await region.published(PART)
            await region.published()
        if tool == "rest":
            assert await us.delete(PART) == (204, None)
        else:
            assert (await us.rest("PUT", deletion(PART), {"grace_s": DAY_S}))[0] == 200
        for region in (us, eu):
            await until(partial(lists, region, [TOPIC]), "nobody sees it, and the topic of the other name stays")
        assert (await us.create(PART))[0] == 409
        assert await eu.undelete(PART) == 204
        for region in (us, eu):
            await until(partial(lists, region, [TOPIC, PART]), "it is back")
        assert (await us.rest("PUT", deletion(PART), {"grace_s": 0}))[0] == 200
        for region in (us, eu):
            await until(partial(purged_of, region, [PART]), "its copy goes")
            assert await region.stored() == [TOPIC]

    with_regions(test)


async def lists(region: Region, names: list[str]) -> bool:
    return await region.listed() == names


def test_a_partition_of_a_topic_that_is_there_is_not_buried_alone() -> None:
    async def test(us: Region, eu: Region) -> None:
        parts = await filled(us, eu, 2)
        assert (await us.rest("PUT", deletion(PART), {"grace_s": DAY_S}))[0] == 412
        assert await us.listed() == parts and not us.tombstones.known

    with_regions(test)


def test_who_says_that_only_this_region_is_meant_deletes_here_alone() -> None:
    """Operators do, who settle which of two topics of a name is the one."""

    async def test(us: Region, eu: Region) -> None:
        await filled(us, eu, 0)
        assert (await us.delete(query="?onlyHere=true"))[0] == 204
        assert not await us.stored() and await eu.listed() == [TOPIC] and not us.tombstones.known

    with_regions(test)


@pytest.mark.parametrize("partitions", [0, 2])
def test_what_one_region_deletes_of_a_topic_takes_nothing_that_is_every_region_s(partitions: int) -> None:
    async def test(us: Region, eu: Region) -> None:
        parts = await filled(us, eu, partitions)
        for path, given in (("permissions/app", ["produce"]), ("messageTTL?isGlobal=true", 60)):
            assert (await us.rest("POST", f"{topic_path(TOPIC)}/{path}", given))[0] == 204
        before = [await of_all_regions(region) for region in (us, eu)]
        assert (await us.delete(partitioned=bool(partitions), query="?force=true&onlyHere=true"))[0] == 204
        assert not await us.stored() and await eu.stored() == parts
        assert [await of_all_regions(region) for region in (us, eu)] == before
        if partitions:
            assert await us.rest("GET", f"{topic_path(TOPIC)}/partitions") == (200, {"partitions": 2, "deleted": False})

    with_regions(test)


@pytest.mark.parametrize("partitions", [0, 2])
def test_what_a_broker_of_an_earlier_version_asks_another_for_is_meant_of_this_region(partitions: int) -> None:
    """It deletes the partitions one by one, or the topics of a namespace, and does not say so."""

    async def test(us: Region, eu: Region) -> None:
        parts = await filled(us, eu, partitions)
        for part in parts:
            assert await us.rest("DELETE", f"{topic_path(part)}?force=true", by_broker=True) == (204, None)
        assert not await us.stored() and await eu.listed() == parts and not us.tombstones.known

    with_regions(test)


async def of_all_regions(region: Region) -> tuple[Any, ...]:
    """What the configuration has of the topic: its partitions, grants, and policies."""
    view = region.face.view
    namespace, policies = view.namespace(NAMESPACE), view.topic_policies(TOPIC)
    assert namespace is not None and policies is not None
    return view.partitions(TOPIC), namespace.topic_permissions, policies.policies


def test_a_plain_topic_of_a_partitioned_one_s_name_goes_with_what_one_region_deletes() -> None:
    """Operators do that who settle which of two topics of a name is the one."""

    async def test(us: Region, eu: Region) -> None:
        await us.published()
        await us.face.admin.create_partitioned(TOPIC, 2)
        await eu.published(f"{TOPIC}-partition-0")
        assert (await us.delete(partitioned=True, query="?onlyHere=true"))[0] == 204
        assert not await us.stored() and await eu.stored() == [f"{TOPIC}-partition-0"]

    with_regions(test)


def test_a_declaration_alone_goes_where_no_region_has_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(us: Region, eu: Region) -> None:
        asking(monkeypatch, us, eu)
        await us.published()
        await us.face.admin.create_partitioned(TOPIC, 2)
        await eu.published(f"{TOPIC}-partition-0")
        path = f"{topic_path(TOPIC)}/partitions?onlyDeclaration=true"
        for region in (us, eu):
            status, answer = await region.rest("DELETE", path)
            assert status == 412 and f"eu has partitions of {TOPIC} (1)" in answer["reason"]
        assert (await eu.delete(partitioned=True, query="?onlyHere=true"))[0] == 204
        assert (await us.rest("DELETE", path))[0] == 204
        assert await us.listed() == [TOPIC] and await us.stored() == [TOPIC], "it is a plain one, with its data"

    with_regions(test)


def test_what_is_asked_of_one_topic_lists_its_namespace_once_at_most() -> None:
    async def test(us: Region, eu: Region) -> None:
        listings: list[int] = []

        async def asked(method: str, path: str, given: Any = None) -> Any:
            before = us.face.factory.listings
            status, answer = await us.rest(method, path, given)
            assert status == 200, answer
            listings.append(us.face.factory.listings - before)
            return answer

        for topic in (TOPIC, f"{TOPIC}-partition-7", f"{TOPIC}2-partition-0"):
            await us.published(topic)
        facts = f"{dr_path(NAMESPACE)}/facts?stored=true"
        found = await asked("GET", f"{facts}&parts_of={quote(TOPIC, safe='')}")
        assert (found["stored"], found["undeleted"]) == (1, 1)
        await asked("GET", deletion(TOPIC))
        await asked("PUT", deletion(TOPIC), {})
        found = await asked("GET", f"{facts}&parts_of={quote(TOPIC, safe='')}")
        assert (found["stored"], found["undeleted"]) == (1, 0)
        found = await asked("GET", facts)
        assert (found["stored"], found["undeleted"]) == (3, 1)
        assert listings == [1, 1, 0, 1, 1]

    with_regions(test)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", path_of(SUBSCRIPTION, topic=TOPIC, subscription="s")),
        ("POST", f"{namespace_path(NAMESPACE)}/unsubscribe/s"),
    ],
    ids=["topic", "namespace"],
)
def test_a_replicated_subscription_is_not_deleted_here_alone(method: str, path: str) -> None:
    """It would be back when the topic is loaded anew, as the others tell of it."""

    async def test(us: Region, eu: Region) -> None:
        await filled(us, eu, 0)
        topic: Any = await us.topics.get(TOPIC, create=False)
        for name in ("s", "own"):
            await topic.subscription(name, initial=AFTER_ALL)
        replicate(topic, topic.subscriptions["s"])
        topic.log.sends = True
        status, answer = await us.rest(method, path)
        assert status == 412 and "--only-here" in answer["reason"] and "s" in topic.subscriptions, answer
        assert await us.rest(method, f"{path.removesuffix('s')}own") == (204, None), "it is of this region alone"
        only_here = path_of(SUBSCRIPTION, topic=TOPIC, subscription="s")
        assert await us.rest("DELETE", f"{only_here}?onlyHere=true") == (204, None)
        assert not topic.subscriptions

    with_regions(test)
