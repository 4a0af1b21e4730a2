"""Snapshots of a partition's producers: one that is too large is stored without the longest idle, and one that cannot
be stored keeps no partition from opening.
"""

from __future__ import annotations

import struct
from typing import Any

import crc32c
import pytest

from heliograph.model.errors import MetadataUnavailable
from heliograph.wire.kafka.record_batches import BatchHeader, build_batch
from region_node.faces.kafka.error_codes import Refused
from region_node.faces.kafka.log import sequence_store
from region_node.faces.kafka.log.producer_sequences import JUMP_MS, LAST_BATCHES, Sequences
from region_node.faces.kafka.log.sequence_store import key_of
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.kafka.topic_requests import create

PRODUCERS, FIRST = 10_000, 5_000_000_000


def full() -> Sequences:
    """As many producers as a partition knows, each with as many batches, at large offsets."""
    made = Sequences()
    for producer in range(FIRST, FIRST + PRODUCERS):
        for sequence in range(LAST_BATCHES):
            made.accept(BatchHeader(1, 0, 0, 0, producer, 1, 100_000 + sequence, 100), FIRST + sequence)
    return made


@pytest.mark.parametrize("away", [False, True])
def test_a_partition_opens_however_many_producers_it_has(monkeypatch: pytest.MonkeyPatch, away: bool) -> None:
    """away: the metadata takes no writes."""

    async def run(face: Face) -> None:
        await create(Client(face.listener), "orders")
        log = await face.broker.log("orders", 0)
        with monkeypatch.context() as patched:
            patched.setattr(sequence_store, "Sequences", full)
            if away:
                patched.setattr(face.meta, "txn", _gone)
            found, _ = await log.store.load(save_above_bytes=0)
        assert len(found) == PRODUCERS
        assert (await face.meta.get(key_of(log.topic.text)) is None) is away
        if not away:
            again, _ = await log.store.load()
            assert PRODUCERS // 2 < len(again) < PRODUCERS
            assert [row[:3] for row in again.dump()] == found.dump()[-len(again) :], "the longest idle are left out"

    with_face(run)


async def _gone(_: Any) -> int:
    raise MetadataUnavailable("no leader")


async def _send(client: Client, sequence: int) -> None:
    batch = bytearray(build_batch([(1000, b"k", b"v" * 100, ())]))
    batch[43:57] = struct.pack(">qhi", FIRST, 0, sequence)  # producer, epoch, sequence
    batch[17:21] = crc32c.crc32c(bytes(batch[21:])).to_bytes(4, "big")
    part = {"index": 0, "records": bytes(batch)}
    fields = {
        "transactional_id": None,
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{"name": "orders", "partition_data": [part]}],
    }
    row = (await client.ask("produce", 7, fields))["responses"][0]["partition_responses"][0]
    assert not row["error_code"]


def test_of_what_links_have_brought_since_the_snapshot_a_bounded_part_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that is only known of before is believed to have gone on meanwhile."""

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "orders")
        log = await face.broker.log("orders", 0)
        await _send(client, 0)
        await log.store.load(save_above_bytes=0)
        for sequence in range(1, 40):
            await _send(client, sequence)
        read, plain = [0], log.ledger.read

        async def noted(at: Any, entries: int, size: int) -> Any:
            pieces = await plain(at, entries, size)
            read[0] += sum(run.count for _, _, run in pieces)
            return pieces

        monkeypatch.setattr(log.ledger, "read", noted, raising=False)
        found, _ = await log.store.load(replayed_bytes_max=1000)
        assert read[0] < 20
        assert found.submit(BatchHeader(1, 0, 0, 0, FIRST, 0, 40, 100)) is None

    with_face(run)


def test_what_another_region_has_brought_does_not_say_what_its_producer_sends_next() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "orders")
        log = await face.broker.log("orders", 0)
        await _send(client, 0)
        log.ledger.runs[-1][2].origin = (2, 1, 1)
        found, _ = await log.store.load()
        assert found.submit(BatchHeader(1, 0, 0, 0, FIRST, 0, 0, 100)) is not None, "it is stored already"
        later = BatchHeader(1, 0, 0, 0, FIRST, 0, 9, 100)
        with pytest.raises(Refused):
            found.submit(later)
        assert found.submit(later, JUMP_MS) is None, "those between are lost, or come later"

    with_face(run)
