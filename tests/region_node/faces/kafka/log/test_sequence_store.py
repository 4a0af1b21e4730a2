"""Snapshots of a partition's producers: one that is too large is stored without the longest idle, and one that cannot
be stored keeps no partition from opening.
"""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.model.errors import MetadataUnavailable
from heliograph.wire.kafka.record_batches import BatchHeader
from region_node.faces.kafka.log import sequence_store
from region_node.faces.kafka.log.producer_sequences import LAST_BATCHES, Sequences
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
            assert again.dump() == found.dump()[-len(again) :], "the longest idle are left out"

    with_face(run)


async def _gone(_: Any) -> int:
    raise MetadataUnavailable("no leader")
