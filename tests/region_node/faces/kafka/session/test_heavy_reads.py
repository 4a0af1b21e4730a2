"""Which requests wait for a place, and that no place is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.model.errors import PeerError
from heliograph.wire.kafka.message_codec import BY_NAME, Request
from region_node.faces.kafka.session.heavy_reads import REQUEST_BYTES, HeavyReads, is_heavy
from tests.region_node.faces.pulsar.harness import settle


@pytest.mark.parametrize(
    ("name", "fields", "size_bytes", "heavy"),
    [
        ("metadata", {"topics": [{"name": "orders"}]}, 40, False),
        ("metadata", {"topics": [{"name": "orders"}]}, REQUEST_BYTES + 1, True),
        ("metadata", {"topics": None}, 40, True),
        ("metadata", {"topics": []}, 40, True),
        ("describe_groups", {"groups": ["g"]}, 40, True),
        ("list_groups", {}, 40, True),
        ("offset_fetch", {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}, 40, False),
        ("offset_fetch", {"groups": [{"group_id": "g", "topics": [{"name": "orders"}]}]}, 40, False),
        ("offset_fetch", {"groups": [{"group_id": "g", "topics": None}]}, 40, True),
        ("find_coordinator", {"key": "g"}, 40, False),
        ("list_offsets", {"topics": [{"name": "orders", "partitions": []}]}, 40, False),
    ],
)
def test_what_may_be_answered_at_length(name: str, fields: dict[str, Any], size_bytes: int, heavy: bool) -> None:
    assert is_heavy(Request(BY_NAME[name], 1, 1, "", fields, b""), size_bytes) is heavy


def test_nobody_of_another_role_waits_and_who_is_cancelled_leaves_nothing() -> None:
    async def main() -> None:
        reads = HeavyReads(at_once=1, waiting_max=1)
        first = await reads.place("ann", "a")
        waiting = asyncio.create_task(reads.place("ann", "a"))
        await settle(2)
        other = await reads.place("bob", "a")
        with pytest.raises(PeerError):
            await reads.place("ann", "a")
        waiting.cancel()
        await settle(2)
        assert reads.roles["ann"].users == 1
        first.made(100)
        second = await reads.place("ann", "a")
        for place in (first, second, other):
            place.end()
        assert not reads.roles

    asyncio.run(main())
