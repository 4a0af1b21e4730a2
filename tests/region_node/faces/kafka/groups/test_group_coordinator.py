"""The coordinator's shell: nobody hears of what is still being stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.model.errors import MetadataUnavailable
from heliograph.model.topic_names import TopicName
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.groups.committed_offsets import OFFSETS, Committed, Row, group_prefix
from region_node.faces.kafka.groups.consumer_group import PENDING_S, STABLE, GroupMember
from region_node.faces.kafka.groups.coordinated_group import OWNERS, owner_key
from region_node.faces.kafka.groups.group_coordinator import ENDS_AT_ONCE, GROUPS, GroupCoordinator, group_key
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.kafka.topic_requests import create
from tests.region_node.faces.pulsar.harness import settle


def stores_late(face: Face, fails: bool) -> asyncio.Event:
    """Writes of the region's metadata wait for the event, and then fail, or not."""
    allowed, put = asyncio.Event(), face.meta.put

    async def late(*arguments: Any, **named: Any) -> int:
        await allowed.wait()
        if fails:
            raise MetadataUnavailable("no leader")
        return await put(*arguments, **named)

    face.meta.put = late  # type: ignore[method-assign]
    return allowed


async def being_stored(face: Face, *, fails: bool) -> tuple[Any, Any, asyncio.Event, asyncio.Task[None]]:
    """(the coordinator, its group, what lets the write end, who waits for it): in the middle of the write of a
    generation.
    """
    coordinator = face.broker.coordinator
    held = await coordinator.held("g")
    allowed = stores_late(face, fails=fails)
    held.group.changed = True
    first = asyncio.create_task(coordinator.settle(held))
    await settle(10)
    return coordinator, held, allowed, first


def test_who_asks_while_a_generation_is_stored_hears_once_it_is() -> None:
    async def run(face: Face) -> None:
        coordinator, held, allowed, first = await being_stored(face, fails=False)
        waiter = coordinator.waiter()
        held.group.sync(coordinator.now, "nobody", None, 1, {}, waiter)
        second = asyncio.create_task(coordinator.settle(held))
        await settle(10)
        assert not waiter.done(), "what is being stored may not be stored after all"
        allowed.set()
        await asyncio.gather(first, second)
        assert waiter.result()["error_code"] == Code.UNKNOWN_MEMBER_ID

    with_face(run)


def test_who_asks_while_a_generation_is_stored_does_not_hear_of_it_where_that_fails() -> None:
    async def run(face: Face) -> None:
        coordinator, held, allowed, first = await being_stored(face, fails=True)
        waiter = coordinator.waiter()
        held.group._answers.append(
            (waiter, {"error_code": 0, "member_id": "m"})
        )  # as of a member whose generation is complete
        second = asyncio.create_task(coordinator.settle(held))
        await settle(10)
        allowed.set()
        await asyncio.wait([first])
        again = await coordinator.held("g")
        await second
        assert waiter.result()["error_code"] == Code.COORDINATOR_NOT_AVAILABLE
        assert await coordinator.held("g") is again is not held

    with_face(run)


def test_a_group_that_cannot_be_stored_is_given_up() -> None:
    async def run(face: Face) -> None:
        coordinator = face.broker.coordinator
        held = await coordinator.held("g")
        allowed = stores_late(face, fails=True)
        held.group.changed = True
        waiter = coordinator.waiter()
        held.group.sync(coordinator.now, "nobody", None, 1, {}, waiter)
        allowed.set()
        await coordinator.settle(held)
        assert waiter.result()["error_code"] == Code.COORDINATOR_NOT_AVAILABLE
        assert await coordinator.held("g") is not held, "what is stored is read again"

    with_face(run)


def test_a_timer_that_comes_late_expels_nobody_whose_heartbeat_lies_unread() -> None:
    async def run(face: Face) -> None:
        coordinator = face.broker.coordinator
        held = await coordinator.held("g")
        member = GroupMember("m", None, "client", "/h", 10.0, 30.0, [("range", b"")])
        member.deadline = coordinator.now + 10.0
        held.group.members["m"], held.group.state = member, STABLE
        await coordinator.settle(held)
        for late in (coordinator.schedule, coordinator._on_timer):  # a request, or the timer itself, comes first
            coordinator.schedule()
            member.deadline -= 60.0  # as if the broker had stood still for a minute meanwhile
            coordinator._due -= 60.0
            late()
            assert "m" in held.group.members and member.deadline > coordinator.now

    with_face(run)


def test_a_step_of_one_group_does_not_look_at_the_others() -> None:
    async def run(face: Face) -> None:
        coordinator, looked = face.broker.coordinator, list[str]()

        async def group(name: str, session_s: float) -> Any:
            held = await coordinator.held(name)
            member = GroupMember("m", None, "client", "/h", session_s, 30.0, [("range", b"")])
            member.deadline = coordinator.now + session_s
            held.group.members["m"], held.group.state = member, STABLE
            await coordinator.settle(held)
            plain = held.group.next_deadline

            def noted() -> float | None:
                looked.append(name)
                return plain()

            held.group.next_deadline = noted  # type: ignore[method-assign]
            return held

        first = await group("first", 20.0)
        second = await group("second", 40.0)
        due, looked[:] = coordinator._due, []
        await coordinator.settle(second)
        assert set(looked) == {"second"} and coordinator._due == due
        second.group.members["m"].deadline = coordinator.now + 10.0
        await coordinator.settle(second)
        assert set(looked) == {"second"} and coordinator._due < due
        second.group.members["m"].deadline = coordinator.now + 30.0  # it was heard of
        looked[:] = []
        coordinator._deadlines.tell("second", coordinator.now - 1.0)
        coordinator._on_timer()
        assert set(looked) == {"second"} and coordinator._due == due, "the other one's time has not come"
        assert first.group.members and second.group.members

    with_face(run)


def test_groups_that_nobody_uses_are_not_kept() -> None:
    async def run(face: Face) -> None:
        coordinator, client = face.broker.coordinator, Client(face.listener)
        for start in range(0, 1_000, 50):
            names = [f"invented-{number}" for number in range(start, start + 50)]
            answer = await client.ask("describe_groups", 0, {"groups": names})
            assert {row["group_state"] for row in answer["groups"]} == {"Dead"} and len(answer["groups"]) == 50
        none = {"member_id": "m", "generation_id": 1}
        for name, fields in (
            ("heartbeat", none),
            ("sync_group", {**none, "assignments": []}),
            ("leave_group", none),
            ("offset_fetch", {"topics": []}),
            ("offset_commit", {"generation_id_or_member_epoch": 1, "member_id": "m", "topics": []}),
        ):
            await client.ask(
                name, 2 if name == "offset_commit" else 0, {"group_id": "other", **fields, "retention_time_ms": -1}
            )
        await client.ask("delete_groups", 0, {"groups_names": ["another"]})
        assert len(coordinator) == 0 and not coordinator._unused

    with_face(run)


def test_a_group_waits_for_who_was_given_an_id_and_takes_no_place_until_then() -> None:
    async def run(face: Face) -> None:
        coordinator, client = face.broker.coordinator, Client(face.listener)
        long = {"session_timeout": 1_800_000}
        given = {name: (await client.ask("join_group", 4, {**joins(name), **long}))["member_id"] for name in "abc"}
        assert len(coordinator) == 0 and list(coordinator._awaited) == ["a", "b", "c"]
        gone = (await coordinator.held("b")).group
        gone.on_time(coordinator.now + PENDING_S - 1)
        assert gone.is_awaited
        gone._pending = dict.fromkeys(gone._pending, coordinator.now)  # as if its time were over
        coordinator._deadlines.tell("b", coordinator.now)
        coordinator._on_timer()
        await settle(5)
        assert list(coordinator._awaited) == ["a", "c"] and not gone.is_awaited
        coming = asyncio.create_task(client.ask("join_group", 4, joins("a", given["a"])))
        await settle(5)
        assert len(coordinator) == 1 and list(coordinator._awaited) == ["c"]
        (await coordinator.held("c")).group.on_time(coordinator.now + PENDING_S - 1)
        (await coordinator.held("a")).group.on_time(coordinator.now + 60.0)
        await coordinator.settle(await coordinator.held("a"))
        assert (await coming)["error_code"] == 0
        refused = await client.ask("join_group", 4, joins("c", given["c"]))
        assert refused["error_code"] == Code.POLICY_VIOLATION, "there is one already"

    with_face(run, groups_max=1)


def test_of_very_many_groups_that_only_gave_out_ids_the_oldest_go() -> None:
    async def run(face: Face) -> None:
        face.broker.coordinator = coordinator = GroupCoordinator(face.broker, awaited_max=3)
        client = Client(face.listener)
        given = [(await client.ask("join_group", 4, joins(name)))["member_id"] for name in "abcdac"]
        assert list(coordinator._awaited) == ["d", "a", "c"]
        assert given[0] not in (await coordinator.held("a")).group._pending
        again = await client.ask("join_group", 4, joins("b", given[1]))
        assert again["error_code"] == Code.UNKNOWN_MEMBER_ID and len(coordinator) == 0

    with_face(run)


def test_a_group_that_is_empty_for_long_goes_and_a_tick_looks_at_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers of a console have a new name each time."""

    async def run(face: Face) -> None:
        coordinator, kept_s = face.broker.coordinator, face.broker.settings.offsets_retention_s
        slow = GroupCoordinator(face.broker, looks_a_tick=2)

        async def left(name: str, since_s: float) -> None:
            held = await coordinator.held(name)
            held.group.changed, held.access.owner = True, "role"
            await coordinator.settle(held)
            held.group.empty_since_ms = face.broker.expiry.wall_ms() - int(1000 * (kept_s + since_s))

        for name, since_s in (("old", 1.0), ("young", -1.0), ("used", 1.0), ("other", 1.0)):
            await left(name, since_s)
        (await coordinator.held("used")).offsets.rows["t", 0] = Row(5, -1, "", face.broker.expiry.wall_ms())
        past = Committed(face.meta, "other")  # by a transaction
        await past.put({("t", 0): Row(5, -1, "", face.broker.expiry.wall_ms())})
        coordinator.tick()
        await settle(20)
        assert sorted(coordinator._held) == ["other", "used", "young"]
        assert await face.meta.get(group_key("old")) is None and await face.meta.get(owner_key("old")) is None
        assert await face.meta.get(group_key("young")) is not None
        for name in ("young", "used", "other"):
            await slow.held(name)
        looked: list[str] = []
        monkeypatch.setattr(slow, "place", lambda name: looked.append(name) or TopicName.parse("t"))
        for _ in range(4):
            slow.tick()
        assert sorted(looked) == sorted(["other", "used", "young"] * 2)
        slow.close()

    with_face(run)


def test_of_groups_that_nobody_uses_some_at_once_are_deleted() -> None:
    most, first_ones = ENDS_AT_ONCE, {f"g{number:03}" for number in range(ENDS_AT_ONCE)}
    others = {f"g{number:03}" for number in range(most, 2 * most + 1)}

    async def run(face: Face) -> None:
        coordinator, kept_s = face.broker.coordinator, face.broker.settings.offsets_retention_s
        for name in sorted(first_ones | others):
            held = await coordinator.held(name)
            held.group.changed = True
            await coordinator.settle(held)
            held.group.empty_since_ms = face.broker.expiry.wall_ms() - int(1000 * (kept_s + 1.0))
        first = await coordinator.held("g000")
        first.version += 1  # another broker has coordinated it meanwhile
        let = held_up(face.meta, "txn")
        for _ in range(3):
            coordinator.tick()
            await settle(10)
        assert coordinator._ending == first_ones
        let.set()
        await settle(10)
        assert set(coordinator._held) == others and await coordinator.held("g000") is not first
        assert await face.meta.get(group_key("g000")) is not None
        for _ in range(2):
            coordinator.tick()
            await settle(20)
        assert not others & set(coordinator._held)

    with_face(run)


def test_a_tick_looks_at_each_group_that_has_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their leadership may have gone elsewhere, which they hear of within two ticks."""

    async def run(face: Face) -> None:
        coordinator, looked = GroupCoordinator(face.broker, looks_a_tick=1), list[str]()
        for name in ("a", "b", "c", "d"):
            held = await coordinator.held(name)
            if name != "b":
                member = GroupMember("m", None, "client", "/h", 10.0, 30.0, [("range", b"")])
                member.deadline = coordinator.now + 3600
                held.group.members["m"] = member
            held.group.changed = True
            await coordinator.settle(held)
        monkeypatch.setattr(coordinator, "place", lambda name: looked.append(name) or TopicName.parse("t"))
        for _ in range(4):
            coordinator.tick()
        assert {name: looked.count(name) for name in looked} == {"a": 4, "b": 1, "c": 4, "d": 4}
        (await coordinator.held("a")).group.members.clear()
        looked.clear()
        for _ in range(5):
            coordinator.tick()
        assert looked.count("a") == 2 and looked.count("b") == 1, "once more, so that nothing is kept of its leadership"
        coordinator.close()

    with_face(run)


def joins(group: str, member: str = "") -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


def held_up(place: Any, name: str) -> asyncio.Event:
    """Calls of that method wait for the event."""
    let, real = asyncio.Event(), getattr(place, name)

    async def late(*arguments: Any, **named: Any) -> Any:
        await let.wait()
        return await real(*arguments, **named)

    setattr(place, name, late)
    return let


@pytest.mark.parametrize("step", ["delete", "txn"])
def test_who_joins_a_group_while_it_is_deleted_is_answered(step: str) -> None:
    async def run(face: Face) -> None:
        coordinator, client = face.broker.coordinator, Client(face.listener)
        await (await coordinator.held("g")).offsets.put({("t", 0): Row(5, -1, "", 1)})
        let = held_up(face.meta, step)
        deleting = asyncio.create_task(coordinator.delete("g"))
        await settle(10)
        joining = asyncio.create_task(client.ask("join_group", 3, joins("g")))
        await settle(10)
        let.set()
        await deleting
        assert (await joining)["error_code"] == Code.COORDINATOR_NOT_AVAILABLE, (
            "it asks again, and makes the group anew"
        )

    with_face(run, rebalance_delay_ms=60_000)


def test_who_has_found_a_group_and_joins_once_it_is_deleted_is_answered() -> None:
    async def run(face: Face) -> None:
        coordinator, client = face.broker.coordinator, Client(face.listener)
        held = await coordinator.held("g")
        held.group.changed = True
        await coordinator.settle(held)
        let = held_up(held.offsets, "load")
        joining = asyncio.create_task(client.ask("join_group", 3, joins("g")))
        await settle(10)
        delattr(held.offsets, "load")  # who deletes it is held up by nothing
        await coordinator.delete("g")
        let.set()
        assert (await joining)["error_code"] == Code.COORDINATOR_NOT_AVAILABLE

    with_face(run, rebalance_delay_ms=60_000)


def test_who_asks_for_all_groups_while_they_are_read_shares_the_next_read() -> None:
    async def run(face: Face) -> None:
        read, ranged = list[str](), face.meta.range

        async def noted(start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]:
            read.append(start)
            return await ranged(start, end, limit=limit)

        face.meta.range = noted  # type: ignore[method-assign]
        face.broker.meta = face.meta
        asking = [asyncio.create_task(face.broker.coordinator.names()) for _ in range(20)]
        await asyncio.gather(*asking)
        assert read.count(GROUPS) == 1

    with_face(run)


def test_groups_without_offsets_are_not_read_for_a_list() -> None:
    async def run(face: Face) -> None:
        coordinator, client, read, ranged = face.broker.coordinator, Client(face.listener), list[str](), face.meta.range
        for number in range(20):
            held = await coordinator.held(f"g{number}")
            held.group.changed = True
            await coordinator.settle(held)

        async def noted(start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]:
            read.append(start)
            return await ranged(start, end, limit=limit)

        face.meta.range = noted  # type: ignore[method-assign]
        assert len((await client.ask("list_groups", 2, {}))["groups"]) == 20 and read == [GROUPS, OFFSETS, OWNERS]
        await Committed(face.meta, "g7").put({("t", 0): Row(5, -1, "", 1)})  # by a transaction
        for _ in range(2):
            assert len((await client.ask("list_groups", 2, {}))["groups"]) == 20
        assert read.count(group_prefix("g7")) == 1 and len(read) == 10

    with_face(run)


def test_a_broker_coordinates_so_many_groups_and_those_go_on() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "orders")

        async def commit(group: str) -> int:
            part = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "", "committed_leader_epoch": -1}
            topics = [{"name": "orders", "partitions": [part]}]
            of = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
            answer = await client.ask("offset_commit", 7, {"group_id": group, **of, "topics": topics})
            code: int = answer["topics"][0]["partitions"][0]["error_code"]
            return code

        async def join(group: str) -> int:
            protocols = [{"name": "range", "metadata": b""}]
            timeouts = {"session_timeout": 30_000, "rebalance_timeout": 30_000}
            of = {"group_id": group, "member_id": "", "protocol_type": "other", "protocols": protocols, **timeouts}
            code: int = (await client.ask("join_group", 3, of))["error_code"]
            return code

        assert [await commit(group) for group in ("a", "b", "c", "a")] == [0, 0, Code.POLICY_VIOLATION, 0]
        assert [await join(group) for group in ("d", "a")] == [Code.POLICY_VIOLATION, 0]
        assert len(face.broker.coordinator) == 2

    with_face(run, groups_max=2)
