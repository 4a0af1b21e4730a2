"""Positions of a streaming query: every entry in exactly one batch, whatever is appended, sealed, or limited
meanwhile.
"""

from __future__ import annotations

import json
import random

import pytest

from heliograph.client.block_reader import TopicSnapshot
from heliograph.model.errors import ConfigError, CorruptData, Trimmed
from heliograph.spark.scan.offsets import (
    Positions,
    TopicPlace,
    begin,
    between,
    decode,
    encode,
    end,
    limited,
    size_up_to,
    sized,
    tasks_of,
)
from heliograph.spark.scan.task_planning import pack

OWN = (1, 1, 1)


def snapshot(*ledgers: tuple[int, int], topic: str = "persistent://a/b/t") -> TopicSnapshot:
    """ledgers: (id, entries); 100 bytes an entry; the last one is open."""
    return TopicSnapshot(
        topic,
        tuple((ledger, entries, entries * 100) for ledger, entries in ledgers),
        (ledgers[-1][0], ledgers[-1][1] - 1),
        OWN,
        {},
    )


@pytest.mark.parametrize("seed", range(30))
def test_every_entry_is_in_one_batch_and_batches_repeat_exactly(seed: int) -> None:
    rng = random.Random(seed)
    topics: dict[str, list[list[int]]] = {f"t{n}": [[n * 100 + 1, 0]] for n in range(3)}
    positions: Positions = {name: begin(snapshot((rows[0][0], 0))) for name, rows in topics.items()}
    read: dict[str, list[tuple[int, int]]] = {name: [] for name in topics}
    batches = []

    def shot(name: str) -> TopicSnapshot:
        return snapshot(*((a, b) for a, b in topics[name]), topic=name)

    for _ in range(40):
        for rows in topics.values():
            rows[-1][1] += rng.randrange(30)
            if rng.random() < 0.2:
                rows.append([rows[-1][0] + rng.randrange(1, 4), 0])
        start = dict(positions)
        stops = limited(
            {name: between(shot(name), start[name], end(shot(name)), may_lose=False) for name in topics},
            rng.choice([150, 2000, 1 << 40]),
        )
        positions |= stops
        batches.append((start, dict(positions)))
        for name in topics:
            for part in between(shot(name), start[name], positions[name], may_lose=False):
                read[name] += [(part.ledger, entry) for entry in range(part.first, part.last + 1)]
        places = {
            name: TopicPlace("us", at, {OWN: at, (2, 1, 0xBEEF): (at[0], -1)}, {OWN: (1, 2)} if at[1] % 2 else {})
            for name, at in positions.items()
        }
        assert decode(encode(places)) == places
    whole = {name: between(shot(name), (0, 0), end(shot(name)), may_lose=True) for name in topics}
    start = dict(positions)
    for name, stop in limited(whole, 1 << 40).items():
        for part in between(shot(name), start[name], stop, may_lose=False):
            read[name] += [(part.ledger, entry) for entry in range(part.first, part.last + 1)]
    for name, rows in topics.items():
        assert read[name] == [(ledger, entry) for ledger, entries in rows for entry in range(entries)]
    again = {name: [] for name in topics}
    for begun, stopped in batches:
        for name in topics:
            for part in between(shot(name), begun[name], stopped[name], may_lose=False):
                again[name] += [(part.ledger, entry) for entry in range(part.first, part.last + 1)]
    assert all(read[name][: len(again[name])] == again[name] for name in topics), (
        "a batch that is run again reads the same"
    )


def test_a_limited_batch_goes_on_in_every_topic() -> None:
    pending = {
        str(n): between(snapshot((1, 50 * n), topic=str(n)), (1, 0), (1, 50 * n), may_lose=False) for n in (1, 2, 20)
    }
    stops = limited(pending, 11_500)
    assert stops == {"1": (1, 5), "2": (1, 10), "20": (1, 100)}
    assert limited(pending, 1) == {"1": (1, 1), "2": (1, 1), "20": (1, 1)}


def test_what_was_deleted_unread_is_said() -> None:
    kept = snapshot((5, 10), (6, 3))
    assert between(kept, (5, 10), (6, 3), may_lose=False)[0].ledger == 6
    with pytest.raises(Trimmed, match="fail_on_data_loss"):
        between(kept, (4, 2), (6, 3), may_lose=False)
    assert [part.ledger for part in between(kept, (4, 2), (6, 3), may_lose=True)] == [5, 6]
    assert between(kept, (6, 3), (6, 3), may_lose=False) == []
    whole = TopicSnapshot(kept.topic, kept.ledgers, kept.last, OWN, {}, trimmed=False)
    assert [part.ledger for part in between(whole, (4, 0), (6, 3), may_lose=False)] == [5, 6], (
        "ledger 4 was empty, and is not named any more"
    )


@pytest.mark.parametrize(
    "offset", [{}, {"format": 3, "topics": {}}, {"format": 1, "topics": 5}, {"format": 2, "topics": []}]
)
def test_a_checkpoint_of_something_else(offset: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="checkpoint"):
        decode(offset)
    with pytest.raises(CorruptData):
        decode({"format": 1, "topics": {"t": ["x", "y"]}})
    for fields in (
        5,
        {},
        {"at": "1:2"},
        {"at": "1", "region": "us"},
        {"at": "1:2", "region": "us", "vector": {"us": "1:2"}},
    ):
        with pytest.raises(CorruptData):
            decode({"format": 2, "topics": {"t": fields}})


def test_the_checkpoint_is_small_and_its_text_depends_on_nothing_but_the_places() -> None:
    place = TopicPlace("eu", (7, 12), {(2, 1, 0x5F3A): (7, 11), (1, 1, 0xA): (3, 4)}, {(1, 1, 0xA): (3, 4)})
    assert json.dumps(encode({"t": place})) == (
        '{"format": 2, "topics": {"t": {"above": {"1.1.a": "3:4"}, "at": "7:12", "region": "eu", "vector": {"1.1.a": '
        '"3:4", "2.1.5f3a": "7:11"}}}}'
    )
    assert decode({"format": 1, "topics": {"t": [7, 12]}}) == {"t": TopicPlace("", (7, 12), None)}
    assert decode(encode({"t": TopicPlace("", (7, 12), None)})) == {"t": TopicPlace("", (7, 12), None)}


@pytest.mark.parametrize("seed", range(50))
def test_a_batch_that_runs_again_is_cut_into_the_same_tasks_though_its_ledgers_grew(seed: int) -> None:
    """The sink numbers the rows of a task: another cut would be other numbers, and rows would be taken for repeated
    ones.
    """
    rng = random.Random(seed)
    ledgers = tuple((7 + n, rng.randrange(5, 300), rng.randrange(5_000, 900_000)) for n in range(rng.randrange(1, 4)))
    topics = [f"persistent://a/b/t{n}" for n in range(rng.randrange(1, 5))]

    def snapshot(topic: str, grown: int) -> TopicSnapshot:
        last, entries, size = ledgers[-1]
        now = (*ledgers[:-1], (last, entries + grown, size + grown * rng.randrange(1, 50_000)))
        return TopicSnapshot(topic, now, (last, entries + grown - 1), (1, 1, 1), {1: "us"})

    before = {topic: snapshot(topic, 0) for topic in topics}
    pending = {topic: between(s, begin(s), end(s), may_lose=False) for topic, s in before.items()}
    stops = limited(pending, rng.choice((20_000, 200_000, 1 << 40)))
    places = {topic: TopicPlace("us", at, {}, size_bytes=size_up_to(pending[topic], at)) for topic, at in stops.items()}
    offset = json.loads(json.dumps(encode(places, (rng.randrange(10_000, 500_000), rng.randrange(1, 5)))))
    cuts = []
    for grown in (0, rng.randrange(1, 400)):
        ranges = []
        for topic, place in decode(offset).items():
            s = snapshot(topic, grown)
            ranges += sized(between(s, begin(s), place.at, may_lose=False), place.size_bytes)
        planned = tasks_of(offset)
        assert planned is not None
        cuts.append(pack(ranges, *planned))
    assert cuts[0] == cuts[1]
    assert tasks_of(encode(places)) is None and decode(encode(places)) == places
