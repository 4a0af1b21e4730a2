"""LatestKeys against the plain meaning of "latest of its key", with more keys than fit in one reading."""

from __future__ import annotations

import random

import pytest

from region_node.compaction.latest_keys import LatestKeys


@pytest.mark.parametrize("seed", range(150))
def test_the_latest_of_each_key_stays(seed: int) -> None:
    rng = random.Random(seed)
    topic: list[tuple[str, bytes | None, bool, str, int, int]] = []  # (kind, key, tombstone, uuid, chunk, chunks)
    for at in range(rng.randrange(1, 300)):
        key = b"key %d" % rng.randrange(1, 100)
        match rng.randrange(10):
            case 0:
                topic.append(("keep", None, False, "", 0, 0))
            case 1 | 2:
                topic.append(("message", key, True, "", 0, 0))
            case 3:
                chunks = rng.randrange(2, 5)
                pieces = [("chunk", key, False, f"u{at}", index, chunks) for index in range(chunks)]
                if rng.random() < 0.3:
                    del pieces[rng.randrange(chunks)]  # never finished, or begun before what is left of the log
                topic += pieces
            case _:
                topic.append(("message", key, False, "", 0, 0))
    want: set[int] = set()
    latest: dict[bytes, set[int]] = {}
    pieces_of: dict[str, list[int]] = {}
    for at, (kind, wanted, tombstone, uuid, _, chunks) in enumerate(topic):
        if kind == "keep":
            want.add(at)
        elif kind == "message" and wanted is not None:
            latest[wanted] = set() if tombstone else {at}
        elif wanted is not None:
            pieces_of.setdefault(uuid, []).append(at)
            if len(pieces_of[uuid]) == chunks:
                latest[wanted] = set(pieces_of[uuid])
    want |= {at for ats in latest.values() for at in ats}
    core = LatestKeys(keys_max=rng.choice([2, 10, 40, 1000]))
    while core.begin():
        for at, (kind, given, tombstone, uuid, index, chunks) in enumerate(topic):
            if kind == "keep":
                core.keep(at)
            elif kind == "message" and given is not None:
                core.message(at, given, tombstone=tombstone)
            else:
                core.chunk(at, given, uuid, index, chunks)
    assert {at for at in range(len(topic)) if core.stays(at)} == want


def test_more_keys_than_fit_take_more_readings_and_no_more_room() -> None:
    core = LatestKeys(keys_max=1000)
    while core.begin():
        for at in range(10_000):
            core.message(at, b"%d" % (at % 5000))
            assert core._used <= 1000
    assert 5 <= core.passes <= 9
    assert [core.stays(at) for at in (0, 4999, 5000, 9999)] == [False, False, True, True]
