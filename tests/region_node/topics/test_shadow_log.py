"""A shadow knows of transactions what its source knows, from whichever snapshot it goes on."""

from __future__ import annotations

import random

import pytest

from heliograph.wire.run import Run
from region_node.topics.shadow_log import _ShadowState
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log.topic_state import TopicState
from replicator.log.transaction_buffer import ABORT, COMMIT, marker_run


def state_of(kind: type[TopicState]) -> TopicState:
    made = kind(region=1, epoch=1, rng=random.Random(1), deduplication=False, settings=DedupSettings())
    made.restore(b"")
    return made


def entries(rng: random.Random, open_: dict[int, None]) -> Run:
    """A run of a transaction that is open or begins, the end of one, or a plain run."""
    choice = rng.random()
    if open_ and choice < 0.3:
        number = rng.choice(list(open_))
        del open_[number]
        return marker_run((0, number), rng.choice([COMMIT, ABORT]), min(open_, default=0))
    parts = [b"x"] * rng.randint(1, 4)
    run = Run(parts, [1] * len(parts))
    if choice < 0.7:
        number = rng.choice(list(open_)) if open_ and rng.random() < 0.5 else max(open_, default=0) + rng.randint(1, 3)
        open_[number] = None
        run.transaction = (0, number)
    return run


@pytest.mark.parametrize("seed", range(20))
def test_what_is_decided(seed: int) -> None:
    rng = random.Random(seed)
    source, open_, entry = state_of(TopicState), dict[int, None](), 0
    shadows: list[TopicState] = [state_of(_ShadowState)]
    for step in range(80):
        if step % 20 == 10:
            shadows.append(state_of(_ShadowState))
            shadows[-1].restore(source.snapshot())
        run = entries(rng, open_)
        for state in (source, *shadows):
            state.replay(7, entry, run)
        entry += run.count
        known = source.transactions
        for shadow in shadows:
            if known is None:
                assert shadow.transactions is None
            else:
                assert shadow.transactions is not None and shadow.transactions.dump() == known.dump()
    assert source.transactions is not None
