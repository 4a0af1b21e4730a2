"""Who may produce: names, epochs, access modes; and the invariants under any order of events."""

from __future__ import annotations

import random

import pytest

from heliograph.model.errors import NotAllowed, ProducerBusy, ProducerFenced
from region_node.topics.producers import EPOCH_GIVEN_MAX, AccessMode, Producer, ProducerRegistry
from tests.region_node.topics.made_producers import Sink, made


def test_a_name_is_there_once() -> None:
    registry = ProducerRegistry()
    first = made("a", named_by_user=True)
    assert registry.add(first) == (True, [])
    with pytest.raises(ProducerBusy):
        registry.add(made("a", epoch=5))
    registry.remove(first)
    assert registry.add(made("a"))[0]


def test_a_generated_name_with_a_higher_epoch_replaces_the_old_one() -> None:
    registry = ProducerRegistry()
    first = made("a", named_by_user=False)
    registry.add(first)
    with pytest.raises(ProducerBusy):
        registry.add(made("a", named_by_user=False))
    second = made("a", named_by_user=False, epoch=1)
    assert registry.add(second) == (True, [first])
    assert registry.remove(first) is None and registry.producers == {"a": second}


def test_exclusive_fences() -> None:
    registry = ProducerRegistry()
    owner = made("a", mode=AccessMode.EXCLUSIVE)
    assert registry.add(owner) == (True, []) and owner.topic_epoch == 0
    with pytest.raises(ProducerBusy):
        registry.add(made("b"))
    with pytest.raises(ProducerFenced):
        registry.add(made("b", mode=AccessMode.EXCLUSIVE))
    taker = made("c", mode=AccessMode.EXCLUSIVE_WITH_FENCING)
    assert registry.add(taker) == (True, [owner]) and taker.topic_epoch == 1
    with pytest.raises(ProducerFenced):
        registry.add(made("a", mode=AccessMode.EXCLUSIVE, topic_epoch=0))
    registry.remove(taker)
    with pytest.raises(ProducerFenced):
        registry.add(made("a", mode=AccessMode.EXCLUSIVE, topic_epoch=0))
    again = made("c", mode=AccessMode.EXCLUSIVE, topic_epoch=1, epoch=1)
    assert registry.add(again) == (True, []) and again.topic_epoch == 1


def test_an_epoch_that_a_lost_metadata_forgot_is_taken_and_one_that_was_never_given_is_not() -> None:
    registry = ProducerRegistry()
    for mode in AccessMode:
        for never in (EPOCH_GIVEN_MAX + 1, 2**63 - 1, 2**64 - 1):
            with pytest.raises(NotAllowed, match="leave it out"):
                registry.add(made("a", mode=mode, topic_epoch=never))
    assert registry.topic_epoch == -1 and not registry.producers
    forgotten = made("a", mode=AccessMode.EXCLUSIVE, topic_epoch=EPOCH_GIVEN_MAX)
    assert registry.add(forgotten)[0] and registry.topic_epoch == EPOCH_GIVEN_MAX
    following = made("b", mode=AccessMode.EXCLUSIVE_WITH_FENCING)
    registry.add(following)
    registry.remove(following)
    again = made("b", mode=AccessMode.EXCLUSIVE, topic_epoch=following.topic_epoch)
    assert registry.add(again)[0] and again.topic_epoch == EPOCH_GIVEN_MAX + 1


def test_the_owner_that_reconnects_keeps_the_topic_before_those_that_wait() -> None:
    registry, sink = ProducerRegistry(), Sink()
    owner = made("a", sink=sink, mode=AccessMode.EXCLUSIVE, named_by_user=False)
    registry.add(owner)
    waiting = made("b", mode=AccessMode.WAIT_FOR_EXCLUSIVE)
    assert registry.add(waiting) == (False, [])
    again = made("a", sink=sink, mode=AccessMode.EXCLUSIVE_WITH_FENCING, named_by_user=False, epoch=1, topic_epoch=0)
    assert registry.add(again)[0] and registry.producers == {"a": again}


@pytest.mark.parametrize("seed", range(100))
def test_an_exclusive_producer_is_alone(seed: int) -> None:
    rng = random.Random(seed)
    registry = ProducerRegistry()
    there: list[Producer] = []
    epochs: list[int] = []
    for _ in range(60):
        if there and rng.random() < 0.4:
            chosen = registry.remove(there.pop(rng.randrange(len(there))))
            assert chosen is None or chosen in there
        else:
            producer = made(
                rng.choice("abcdef"),
                mode=AccessMode(rng.randrange(4)),
                epoch=rng.randrange(3),
                named_by_user=rng.random() < 0.5,
            )
            try:
                _, closing = registry.add(producer)
            except (ProducerBusy, ProducerFenced):
                continue
            there = [p for p in there if p not in closing]
            there.append(producer)
        active = list(registry.producers.values())
        if any(p.mode is not AccessMode.SHARED for p in active):
            assert len(active) == 1
            epochs.append(active[0].topic_epoch or 0)
        assert not (registry.waiting and not active)
        assert sorted(map(id, [*active, *registry.waiting])) == sorted(map(id, there))
    assert epochs == sorted(epochs)
