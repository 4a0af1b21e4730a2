"""Which batches are opened, where, and what of them is kept."""

from __future__ import annotations

import asyncio
import gzip
import struct
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.errors import CorruptData, NotAllowed
from heliograph.runtime.compute_thread import Overloaded
from heliograph.wire.kafka import record_batches
from heliograph.wire.kafka.record_batches import (
    EXPANDED_BYTES_MAX,
    HEADER,
    ReadRoom,
    Record,
    build_batch,
    check_batch,
    old_message_set,
    records_of,
)
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.produce_fetch.opened_batches import (
    KEYS_AT_ONCE,
    check_keys,
    keys_known,
    open_batches,
    renewed,
)


class Thread:
    """Runs at once, or says that it has too much to do."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.full = False

    async def run(self, work: Callable[[], Any], *, who: Any, within_s: float) -> Any:
        if self.full:
            raise Overloaded
        self.ran.append(who)
        return work()


def log(compacts: bool = True) -> Any:
    return SimpleNamespace(name="persistent://acme/n/t", compacts=compacts)


def asked(batches: list[bytes], version: int = 7) -> tuple[Any, list[dict[str, Any]]]:
    """A request with a partition of topic t for each."""
    frame, parts = bytearray(), []
    for index, batch in enumerate(batches):
        parts.append({"index": index, "records": (len(frame), len(batch))})
        frame += batch
    fields = {"topic_data": [{"name": "t", "partition_data": parts}]}
    return SimpleNamespace(version=version, frame=frame, fields=fields), parts


def old_set(wrapped: list[Record], wrappers: int = 1, codec: int = 1) -> bytes:
    inner = old_message_set(list(enumerate(wrapped)), 0, 0)
    value = gzip.compress(inner, 9)
    body = struct.pack(">bb", 0, codec) + b"\xff" * 4 + struct.pack(">i", len(value)) + value
    return (struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body) * wrappers


KEYED: Record = (1, b"k", b"v", ((b"h", b"x"),) * 3)
KEYLESS: Record = (1, None, b"v", ())


def test_an_old_set_is_made_new() -> None:
    records = [(0, b"k", b"v", ()), (0, None, b"w", ())] * 100
    found = renewed(memoryview(old_set(records)))  # type: ignore[arg-type]
    assert found is not None and (found.records, found.keyed) == (200, False)
    assert check_batch(memoryview(found.batch)).offsets == 200
    assert [value for _, _, value, _ in records_of(found.batch)] == [value for _, _, value, _ in records]
    assert renewed(memoryview(build_batch([KEYED]))) is None


def test_no_more_is_unpacked_than_a_set_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many small messages can be 64 MiB inside."""
    most: list[int] = []
    real = record_batches.decompress

    def noted(codec: int, data: Any, limit: int) -> bytes:
        most.append(limit)
        return real(codec, data, limit)

    monkeypatch.setattr(record_batches, "decompress", noted)
    value = bytes(3 * EXPANDED_BYTES_MAX // 10)
    size = len(old_message_set([(0, (0, None, value, ()))], 0, 0))
    with pytest.raises(CorruptData, match=str(EXPANDED_BYTES_MAX)):
        renewed(memoryview(old_set([(0, None, value, ())], 4)))
    assert most == [EXPANDED_BYTES_MAX - size * index for index in range(4)]
    with pytest.raises(CorruptData, match="none"):
        renewed(memoryview(old_set([])))


def test_a_set_has_a_bound_of_records() -> None:
    records = [KEYLESS] * 1000
    assert renewed(memoryview(old_set(records)), 1000) is not None
    with pytest.raises(Refused) as refused:
        renewed(memoryview(old_set(records)), 999)
    assert refused.value.code == Code.MESSAGE_TOO_LARGE


def test_what_no_log_takes_is_not_opened_and_the_rest_off_the_loop() -> None:
    thread: Any = Thread()
    request, parts = asked([old_set([KEYLESS])] * 2, version=2)
    logs: Any = {("t", 0): NotAllowed("no right"), ("t", 1): log()}
    asyncio.run(open_batches(thread, request, logs))
    assert "renewed" not in parts[0] and parts[1]["renewed"].records == 1 and thread.ran == ["acme"]
    thread.full = True
    asyncio.run(open_batches(thread, request, logs))
    assert parts[1]["renewed"].code == Code.REQUEST_TIMED_OUT, "clients send it again"


def test_keys_are_looked_for_at_once_as_far_as_there_is_room_in_a_request() -> None:
    thread: Any = Thread()
    most_bytes, most = KEYS_AT_ONCE
    small, many = build_batch([KEYED] * 3), build_batch([KEYED] * (most + 1))
    bomb = build_batch([(1, b"k", bytes(most_bytes), ())], codec=1)
    assert len(bomb) < 10_000
    nearly = build_batch([KEYED] * (most - 10))
    request, parts = asked([small, build_batch([KEYED, KEYLESS]), nearly, small, small, bomb, many])
    of, room = log(), ReadRoom(*KEYS_AT_ONCE)
    assert [keys_known(of, request, part, room) for part in parts] == [True] * 4 + [False] * 3
    assert [part.get("keyed") for part in parts] == [True, False, True, True, None, None, None] and not thread.ran
    assert all(keys_known(log(False), request, part, room) for part in parts)
    asyncio.run(open_batches(thread, request, {("t", index): of for index in range(7)}))
    assert [part["keyed"] for part in parts] == [True, False] + [True] * 5 and len(thread.ran) == 2
    for part in parts:
        if part["keyed"]:
            check_keys(part, memoryview(b""))
        else:
            with pytest.raises(Refused, match="without key"):
                check_keys(part, memoryview(b""))


def test_a_head_that_says_few_offsets_of_many_records_is_not_believed() -> None:
    batch = bytearray(build_batch([KEYED] * 5000, codec=4))
    fields = list(HEADER.unpack_from(batch))
    fields[6] = 0
    HEADER.pack_into(batch, 0, *fields)
    request, (part,) = asked([bytes(batch)])
    assert not keys_known(log(), request, part, ReadRoom(*KEYS_AT_ONCE))
    fields[12] = -5000
    HEADER.pack_into(batch, 0, *fields)
    request, (part,) = asked([bytes(batch)])
    room = ReadRoom(*KEYS_AT_ONCE)
    assert keys_known(log(), request, part, room) and isinstance(part["keyed"], CorruptData)
    assert room.items_left == KEYS_AT_ONCE[1]


def test_many_batches_of_a_request_are_looked_into_with_pauses() -> None:
    request, parts = asked([build_batch([KEYED] * (KEYS_AT_ONCE[1] // 2))] * 10)

    async def body() -> int:
        turns = 0
        opening = asyncio.ensure_future(open_batches(Thread(), request, dict.fromkeys(LOGS, log())))  # type: ignore[arg-type]
        while not opening.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    LOGS = [("t", index) for index in range(10)]
    assert asyncio.run(body()) >= 5 and all(part["keyed"] for part in parts)


def test_headers_are_passed_over_where_keys_are_looked_for() -> None:
    batch = bytearray(build_batch([KEYED, KEYED]))
    assert record_batches.all_keyed(batch) and not record_batches.all_keyed(build_batch([KEYED, KEYLESS, KEYED]))
    del batch[-2:]
    with pytest.raises(CorruptData):
        record_batches.all_keyed(batch)
