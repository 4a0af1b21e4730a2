"""Topic lists: patterns, the list and its updates over frames, and what a pattern may not do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from heliograph.model.errors import NotAllowed
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.server_frames import with_broker_metadata
from heliograph.wire.run import Run
from local_meta import keys
from region_node.faces.pulsar.session.topic_watchers import WATCHERS_MAX
from region_node.topics.serving import topic_listing
from region_node.topics.serving.topic_listing import NAMES_AT_ONCE, WatchedList, topic_pattern, topics_hash
from tests.region_node.faces.pulsar.codec import entry, frame, send
from tests.region_node.faces.pulsar.harness import Broker, Client, K, messages, settle, with_broker

PREFIX = "persistent://public/default/"


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("persistent://public/default/a.*", {"a", "ab-partition-3"}),
        ("public/default/(a|b)[0-9]?", {"a", "b"}),
        ("non-persistent://public/default/.*b", {"b", "ab-partition-3"}),
        (".*", {"a", "b", "ab-partition-3"}),
    ],
)
def test_patterns(pattern: str, matching: set[str]) -> None:
    matches = topic_pattern(pattern)
    assert {name for name in ("a", "b", "ab-partition-3") if matches(PREFIX + name)} == matching


@pytest.mark.parametrize(
    "pattern", ["(?=a)b", r"(a)\1", "(", "x" * 51, "a{1001}", "(?>a)", "a++", "[a&&b]", "(.{9}){99}"]
)
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(NotAllowed):
        topic_pattern(pattern)


def test_topics_hash() -> None:
    assert topics_hash([]) == "00000000" and topics_hash(["b", "a"]) == topics_hash(["a", "b"]) != topics_hash(["ab"])


async def put(broker: Broker, name: str) -> None:
    await broker.meta.put(keys.managed_ledger(PREFIX + name), b"x")


def watch(
    watcher_id: int, pattern: str = "public/default/a.*", namespace: str = "public/default", **fields: str
) -> bytes:
    return frame(
        K.WATCH_TOPIC_LIST,
        request_id=100 + watcher_id,
        watcher_id=watcher_id,
        namespace=namespace,
        topics_pattern=pattern,
        **fields,
    )


def updates(came: list[tuple[pb.BaseCommand, bytes]]) -> list[tuple[int, list[str], list[str]]]:
    out = []
    for command, _ in came:
        assert command.type == K.WATCH_TOPIC_UPDATE
        update = command.watchTopicUpdate
        out.append(
            (
                update.watcher_id,
                [n.removeprefix(PREFIX) for n in update.new_topics],
                [n.removeprefix(PREFIX) for n in update.deleted_topics],
            )
        )
    return out


def test_a_watcher_gets_the_list_and_then_what_changes() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        for name in ("a1", "b1"):
            await put(broker, name)
        ((answer, _),) = await client.do(watch(1))
        listed = answer.watchTopicListSuccess
        assert (listed.request_id, listed.watcher_id, list(listed.topic)) == (101, 1, [PREFIX + "a1"])
        assert listed.topics_hash == topics_hash([PREFIX + "a1"])
        ((answer, _),) = await client.do(watch(2, topics_hash=listed.topics_hash))
        assert answer.watchTopicListSuccess.topics_hash == listed.topics_hash and not answer.watchTopicListSuccess.topic
        await put(broker, "a2")
        await put(broker, "b2")
        await put(broker, "a1")  # a rollover
        came = await client.news()
        assert updates(came) == [(1, ["a2"], []), (2, ["a2"], [])]
        assert came[0][0].watchTopicUpdate.topics_hash == topics_hash([PREFIX + "a1", PREFIX + "a2"])
        ((answer, _),) = await client.do(frame(K.WATCH_TOPIC_LIST_CLOSE, request_id=7, watcher_id=1))
        assert answer.success.request_id == 7
        await broker.meta.delete(keys.managed_ledger(PREFIX + "a1"))
        assert updates(await client.news()) == [(2, [], ["a1"])]
        client.transport.close()
        await client.news()
        assert not broker.topics.lists._namespaces

    with_broker(test)


def test_what_changes_while_a_list_is_matched_is_in_it() -> None:
    count = 16 * NAMES_AT_ONCE

    async def test(broker: Broker) -> None:
        client = await broker.client()
        for n in range(count):
            await put(broker, f"a{n}")
        client.raw(watch(1) + watch(2) + frame(K.WATCH_TOPIC_LIST_CLOSE, request_id=7, watcher_id=2))
        for _ in range(100):
            await asyncio.sleep(0)
            if (namespace := broker.topics.lists._namespaces.get("public/default")) and namespace.names:
                break
        await put(broker, "a-late")
        await broker.meta.delete(keys.managed_ledger(PREFIX + "a0"))
        assert len(client.transport.written) == 1, "the list is still being matched"
        came = await client.news()
        assert [command.type for command, _ in came] == [K.SUCCESS, K.WATCH_TOPIC_LIST_SUCCESS]
        left = [*(PREFIX + f"a{n}" for n in range(1, count)), PREFIX + "a-late"]
        listed = came[1][0].watchTopicListSuccess
        assert set(listed.topic) == set(left) and listed.topics_hash == topics_hash(left)
        await put(broker, "a-later")
        assert updates(await client.news()) == [(1, ["a-later"], [])]

    with_broker(test)


def test_changes_of_one_turn_come_together_and_cancel_out() -> None:
    async def test(broker: Broker) -> None:
        lists, told = broker.topics.lists, list[tuple[list[str], list[str]]]()
        for name in "az":
            await put(broker, name)
        names, stop = await lists.watch("public/default", lambda came, gone: told.append((came, gone)))
        assert names == [PREFIX + "a", PREFIX + "z"]
        namespace = lists._namespaces["public/default"]
        key = {name: keys.managed_ledger(PREFIX + name) for name in "abcdz"}
        for name, value in (
            ("b", b"1"),
            ("b", b"2"),
            ("c", b"1"),
            ("c", None),
            ("a", None),
            ("d", b"1"),
            ("z", None),
            ("z", b"5"),
        ):
            lists._changed(namespace, key[name], value)
        await settle()
        assert told == [([PREFIX + "b", PREFIX + "d"], [PREFIX + "a"])]
        stop()

    with_broker(test)


def test_of_many_watchers_each_is_told_in_a_turn_of_its_own_and_all_of_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed, each_told, after = list[int](), list[int](), WatchedList.after

    def counted(names: Iterable[str]) -> str:
        hashed.append(1)
        return topics_hash(names)

    def telling(names: WatchedList, came: list[str], gone: list[str]) -> tuple[list[str], list[str], WatchedList]:
        each_told.append(1)
        return after(names, came, gone)

    monkeypatch.setattr(topic_listing, "topics_hash", counted)
    monkeypatch.setattr(WatchedList, "after", telling)

    async def test(broker: Broker) -> None:
        client, late = await broker.client(), await broker.client()
        await client.do(*(watch(number) for number in range(WATCHERS_MAX)))
        for _ in range(3):
            await settle(200)
        ((answer, _), *_) = [c for c in await client.do(watch(WATCHERS_MAX)) if c[0].type == K.ERROR]
        assert answer.error.error == pb.NotAllowedError
        await put(broker, "a1")
        for turn in range(40):
            await asyncio.sleep(0)
            assert len(each_told) <= turn + 1
        assert len(each_told) > 20
        await put(broker, "a2")  # while the first is told
        late.raw(watch(7))
        await settle(WATCHERS_MAX)
        ((answer, _),) = await late.news()
        assert list(answer.watchTopicListSuccess.topic) == [PREFIX + "a1", PREFIX + "a2"]
        await broker.meta.delete(keys.managed_ledger(PREFIX + "a1"))
        await settle(5 * WATCHERS_MAX)
        told = updates(await client.news())
        assert [names for watcher, *names in told if watcher == 0] == [[["a1"], []], [["a2"], []], [[], ["a1"]]]
        assert {watcher for watcher, *_ in told} == set(range(WATCHERS_MAX)) and len(told) == 3 * WATCHERS_MAX
        assert updates(await late.news()) == [(7, [], ["a1"])]
        assert len(hashed) == 3  # one a change, for all 101
        await client.do(frame(K.WATCH_TOPIC_LIST_CLOSE, request_id=900, watcher_id=0))
        assert len(broker.topics.lists._lists) == 1

    with_broker(test)


def test_who_joins_while_others_are_told_waits_and_changes_never_wait_twice() -> None:
    async def test(broker: Broker) -> None:
        lists, told, waited = broker.topics.lists, list[tuple[int, str]](), list[int]()
        known: dict[int, set[str]] = {}

        async def join(number: int) -> None:
            def changed(came: list[str], gone: list[str]) -> None:
                told.extend((number, name) for name in came)

            names, _ = await lists.watch("public/default", changed)
            known[number] = set(names)

        for number in range(50):
            await join(number)
        namespace = lists._namespaces["public/default"]
        joins = []
        for number in range(50, 80):
            lists._changed(namespace, keys.managed_ledger(PREFIX + f"a{number}"), b"1")
            joins.append(asyncio.create_task(join(number)))
            await settle(3)
            waited.append(sum(len(watching) for watching, *_ in namespace.telling))
        assert max(waited) <= 80, "no more than one for each watcher"
        await asyncio.gather(*joins)
        await settle(200)
        names = {PREFIX + f"a{number}" for number in range(50, 80)}
        for number in range(80):
            came = [name for watcher, name in told if watcher == number]
            assert known[number] | set(came) == names and len(known[number]) + len(came) == 30, "each name once"

    with_broker(test)


def test_watchers_that_are_refused() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        for refused, code in (
            (watch(1, "(?!a)b"), pb.NotAllowedError),
            (watch(1, namespace="no/where"), pb.TopicNotFound),
        ):
            ((answer, _),) = await client.do(refused)
            assert (answer.error.request_id, answer.error.error) == (101, code)
        await client.do(watch(1))
        ((answer, _),) = await client.do(watch(1))
        assert answer.error.error == pb.NotAllowedError
        raced = await client.do(watch(2), frame(K.WATCH_TOPIC_LIST_CLOSE, request_id=8, watcher_id=2))
        assert [c.success.request_id for c, _ in raced if c.type == K.SUCCESS] == [8]
        await put(broker, "a1")
        assert [u[0] for u in updates(await client.news())] == [1]

    with_broker(test)


# -- what the broker knows of an entry


def test_broker_metadata_goes_to_who_negotiated_it() -> None:
    async def test(broker: Broker) -> None:
        plain = await broker.client()
        client = Client(broker.listener)
        flags = {"supports_broker_entry_metadata": True}
        ((answer, _),) = await client.do(frame(K.CONNECT, client_version="t", protocol_version=19, feature_flags=flags))
        assert answer.connected.feature_flags.supports_broker_entry_metadata
        await plain.producer(1)
        for i, one in enumerate((plain, client)):
            await one.subscribe(2, name=f"s{i}", initialPosition=1)
            await one.flow(100, 2)
        stored = [entry(b"x" * 18, sequence=n, batch=3 * (n % 2)) for n in range(4)]
        got = messages(
            await plain.do(*(send(1, n, one, num_messages=3 if n % 2 else 1) for n, one in enumerate(stored)))
        )
        assert [payload for _, payload in got] == stored
        indexes = []
        for (_, payload), one in zip(messages(await client.news()), stored, strict=True):
            assert payload[:2] == b"\x0e\x02"
            size = int.from_bytes(payload[2:6], "big")
            assert payload[6 + size :] == one
            indexes.append(pb.BrokerEntryMetadata.FromString(payload[6 : 6 + size]).index)
        assert indexes == [0, 3, 4, 7]

    with_broker(test, broker_entry_metadata=True)


def test_broker_metadata_of_a_cut_run() -> None:
    run = Run([b"a", b"bc", b"d"], [1, 2, 1], counts=[1, 0, 5], time_ms=1_700_000_000_000, first_index=300).cut(1, 3)
    made = [pb.BrokerEntryMetadata.FromString(bytes(part[6 : 6 + part[5]])) for part in with_broker_metadata(run).parts]
    assert [(m.broker_timestamp, m.index) for m in made] == [(run.time_ms, 300), (run.time_ms, 305)]
