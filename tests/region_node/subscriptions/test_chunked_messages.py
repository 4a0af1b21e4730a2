"""Chunked messages on a shared subscription: all pieces of a message at one consumer, in their order, whoever has
room.
"""

from __future__ import annotations

import random

import pytest

from heliograph.wire.run import Run
from region_node.subscriptions.chunked_messages import ASIDE_MAX, ChunkHolders, chunked_entries
from region_node.subscriptions.consumer import Consumer
from region_node.subscriptions.sticky_keys import KEY_BYTES
from tests.region_node.faces.pulsar.codec import entry
from tests.region_node.subscriptions.dispatch_world import Sink, World, run


def piece(uuid: str, index: int, count: int, size: int = 10) -> bytes:
    return entry(b"x" * size, uuid=uuid, chunk_id=index, num_chunks_from_msg=count, total_chunk_msg_size=size * count)


def append(w: World, parts: list[bytes]) -> None:
    w.ledger.append_run(Run(parts, [len(p) for p in parts]), lambda *_: None, None)


def test_which_entries_are_pieces() -> None:
    parts = [
        entry(b"x"),
        piece("u", 1, 3),
        entry(b"\xd8\x01" * 9),
        piece("v", 0, 1),
        entry(b"", uuid="\u0601" * 3),
        b"\0\0\0\x09junk",
        b"",
    ]
    for some in (parts, parts[:1]):
        for body in (None, b"".join(some)):
            found = chunked_entries(Run(None if body else some, [len(p) for p in some], body=body))
            assert found == ({1: ("u", 1, 3)} if len(some) > 1 else {})


def test_of_large_uuids_little_is_remembered() -> None:
    holders, here = ChunkHolders(), [Consumer(1, "a", Sink()), Consumer(2, "b", Sink())]
    uuids = [f"{number}" * 10_000 for number in range(100)]
    begun = {uuid: holders.holder((uuid, 0, 3), here, lambda: here[len(holders._open) % 2]) for uuid in uuids}
    assert sum(map(len, holders._open)) <= KEY_BYTES * len(uuids) == KEY_BYTES * len(holders._open)
    assert all(holders.holder((uuid, 1, 3), here, here.clear) is consumer for uuid, consumer in begun.items())  # type: ignore[arg-type,return-value]


def test_what_has_no_room_waits_and_lets_others_pass() -> None:
    async def test(w: World) -> None:
        a, b = w.join(permits=1), w.join(permits=100)
        append(w, [piece("u", 0, 3)])
        await w.settle()
        first = a if w.entries(a) else b
        other = b if first is a else a
        w.subscription.flow(other, 100)
        first.permits = 0
        append(w, [piece("u", 1, 3), entry(b"y"), piece("u", 2, 3), entry(b"z")])
        await w.settle()
        assert w.entries(first) == [0] and w.entries(other) == [2, 4]
        w.subscription.flow(first, 1)
        await w.settle()
        assert w.entries(first) == [0, 1]
        w.subscription.flow(first, 10)
        await w.settle()
        assert w.entries(first) == [0, 1, 3] and w.entries(other) == [2, 4]

    run(test)


def test_too_many_that_wait_hold_everybody() -> None:
    pieces = ASIDE_MAX + 3

    async def test(w: World) -> None:
        a, b = w.join(permits=1), w.join(permits=1)
        append(w, [piece("u", 0, pieces)])
        await w.settle()
        first, other = (a, b) if w.entries(a) else (b, a)
        first.permits = 0
        w.subscription.flow(other, 100)
        append(w, [piece("u", index, pieces) for index in range(1, pieces)] + [entry(b"y")])
        for _ in range(20):
            await w.settle()
        assert w.entries(other) == []
        w.subscription.flow(first, 2 * pieces)
        w.subscription.tick(1.0)
        for _ in range(20):
            await w.settle()
        assert w.entries(first)[:pieces] == list(range(pieces))
        assert sorted(w.entries(first) + w.entries(other)) == list(range(pieces + 1))

    run(test)


def test_messages_that_are_never_finished_are_forgotten() -> None:
    holders, here = ChunkHolders(), [Consumer(i, f"c{i}", Sink()) for i in range(2)]
    for number in range(50):
        holders.holder((f"u{number}", 0, 2), here, lambda: here[0], open_max=5)
    assert len(holders._open) == 5


@pytest.mark.parametrize("seed", range(60))
def test_all_pieces_of_a_message_go_to_one_consumer(seed: int) -> None:
    async def test(w: World) -> None:
        rng = random.Random(seed)
        here = [w.join(permits=rng.randrange(5)) for _ in range(2)]
        where: dict[int, tuple[str, int, int]] = {}
        sent: list[list[bytes]] = []
        count, number = 0, 0
        gone: list[Consumer] = []
        for _ in range(rng.randrange(3, 14)):  # messages of several producers, mixed
            waiting = (
                [[("", 0, 1)]]
                if rng.random() < 0.4
                else [[(f"u{number + i}", k, n) for k in range(n)] for i, n in enumerate([rng.randrange(2, 5)] * 2)]
            )
            number += 2
            parts = []
            while any(waiting):
                one = rng.choice([w_ for w_ in waiting if w_])
                where[count] = one.pop(0)
                uuid, index, total = where[count]
                parts.append(piece(uuid, index, total) if uuid else entry(b"x"))
                count += 1
            sent.append(parts)
        for parts in sent:
            append(w, parts)
            w.ledger.cache = rng.random() < 0.6
            for _ in range(rng.randrange(4)):
                w.subscription.flow(rng.choice(here), rng.randrange(4))
                await w.settle()
            if rng.random() < 0.25:
                leaving = here.pop(rng.randrange(len(here)))
                gone.append(leaving)
                w.subscription.remove(leaving)
                here.append(w.join(permits=2))
        for _ in range(50):
            for consumer in here:
                w.subscription.flow(consumer, 2)
            await w.settle()
        delivered = {e: consumer for consumer in here for e in w.entries(consumer)}
        assert sorted(delivered) == list(range(count)), "not everything is held by somebody who is here"
        for uuid in {u for u, _, _ in where.values() if u}:
            pieces = [e for e in range(count) if where[e][0] == uuid]
            holder = delivered[pieces[-1]]
            got = [e for e in w.entries(holder) if e in pieces]
            assert got[-len(pieces) :] == pieces, f"{uuid}: {got} of {pieces} at {holder.name}"

    run(test)
