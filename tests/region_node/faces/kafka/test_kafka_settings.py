"""What an operator sets of the Kafka listener, each at a value that is not the default: what a client sees of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heliograph.model.configuration.configuration_records import TopicPolicies
from heliograph.model.errors import ConfigError
from region_node.faces.kafka.connection.kafka_listener import _TICK_S
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.kafka_settings import KafkaSettings
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.kafka.topic_requests import create
from tests.region_node.faces.pulsar.harness import settle

NOBODY: dict[str, Any] = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}


async def join(client: Client, *, session_timeout: int = 10_000, group: str = "g") -> int:
    """Returns the error code of a member that joins."""
    protocols = [{"name": "range", "metadata": b"\0\0\0\0\0\0\xff\xff\xff\xff"}]
    fields = {"group_id": group, "member_id": "", "protocol_type": "consumer", "protocols": protocols}
    times = {"session_timeout": session_timeout, "rebalance_timeout": 1}
    return int((await client.ask("join_group", 3, {**fields, **times}))["error_code"])


async def commit(client: Client, metadata: str) -> int:
    part = {"partition_index": 0, "committed_offset": 7, "committed_metadata": metadata, "committed_leader_epoch": -1}
    topics = [{"name": "orders", "partitions": [part]}]
    answer = await client.ask("offset_commit", 7, {"group_id": "g", **NOBODY, "topics": topics})
    return int(answer["topics"][0]["partitions"][0]["error_code"])


def test_a_member_asks_for_a_session_within_the_bounds() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        found = [await join(client, session_timeout=ms, group=f"g{ms}") for ms in (199, 200, 300, 301)]
        wrong = Code.INVALID_SESSION_TIMEOUT
        assert found == [wrong, 0, 0, wrong]

    with_face(run, session_timeout_min_ms=200, session_timeout_max_ms=300)


def test_a_full_group_takes_no_member() -> None:
    async def run(face: Face) -> None:
        assert await join(Client(face.listener)) == 0
        assert await join(Client(face.listener)) == Code.GROUP_MAX_SIZE_REACHED

    with_face(run, group_members_max=1)


def test_the_text_beside_an_offset_is_bounded() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "orders", partitions=1)
        assert [await commit(client, text) for text in ("abc", "abcd")] == [0, Code.OFFSET_METADATA_TOO_LARGE]

    with_face(run, offset_metadata_bytes_max=3)


def test_beyond_so_many_fetch_sessions_the_longest_unused_ends() -> None:
    async def run(face: Face) -> None:
        sessions = face.broker.sessions
        first, second = (sessions.begin(("ann",), False, {}) for _ in range(2))
        assert first is not None and second is not None
        assert list(sessions._sessions) == [second.number]

    with_face(run, fetch_sessions_max=1)


def test_topics_keep_and_compact_as_the_broker_says_where_they_say_nothing() -> None:
    async def run(face: Face) -> None:
        await create(Client(face.listener), "orders", partitions=1)
        configs, name = face.broker.configs, "persistent://public/default/orders"
        assert (configs.number(name, "retention.ms"), configs.number(name, "retention.bytes")) == (60_000, 1 << 20)
        await configs.put(name, {"cleanup.policy": "compact"})
        policies = (face.view.topic_policies(name) or TopicPolicies()).policies
        assert policies["compactionThreshold"] == 4096

    with_face(run, retention_ms=60_000, retention_bytes=1 << 20, compaction_bytes=4096)


def test_retention_is_looked_at_as_often_as_is_said() -> None:
    async def run(face: Face) -> None:
        looks: list[float] = []

        async def keep() -> None:
            looks.append(face.clock.now)

        face.broker.keep = keep  # type: ignore[method-assign]
        listener, begun = face.listener, face.clock.now
        listener._next_tick(begun)
        listener._kept_at = begun
        for _ in range(10):
            face.clock.now += _TICK_S
            listener._tick()
            await settle()
        assert looks == [begun + 5 * _TICK_S, begun + 10 * _TICK_S]

    with_face(run, retention_check_s=5 * _TICK_S)


def test_what_is_less_than_one_message_is_refused() -> None:
    for name in ("request_bytes_max", "inflight_bytes_max", "waiting_bytes_max"):
        with pytest.raises(ConfigError, match=f"broker.kafka.{name} is less than one message"):
            replace(KafkaSettings(message_bytes_max=2 << 20), **{name: 1 << 20})
    with pytest.raises(ConfigError, match="session_timeout_min_ms <= session_timeout_max_ms"):
        KafkaSettings(session_timeout_min_ms=2, session_timeout_max_ms=1)
