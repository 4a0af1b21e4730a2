"""Whose offload policies a tick asks: everybody's, or of very many topics the next ones, each once in a round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from heliograph.runtime.recent_latencies import Recent
from storage.tiered.offload.offloader import _TOPICS_A_TICK, OffloadStatus, Tiering
from storage.tiered.tiered_settings import TieredSettings
from tests.region_node.topics.fake_storage import FakeClock


def made(opened: list[Any]) -> Tiering:
    nothing: Any = None
    return Tiering(
        region="us",
        context=nothing,
        stores=nothing,
        opened=lambda: opened,
        policy=nothing,
        describe=nothing,
        collects=nothing,
        clock=FakeClock(),
        settings=TieredSettings(),
    )


def test_a_tick_costs_no_more_however_many_topics_are_open() -> None:
    opened: list[Any] = [SimpleNamespace(topic=f"t{number}") for number in range(2 * _TOPICS_A_TICK + 700)]
    tiering = made(opened)
    for _ in range(2):
        turns = [tiering._next_topics() for _ in range(3)]
        assert sorted(map(len, turns)) == [700, _TOPICS_A_TICK, _TOPICS_A_TICK]
        assert sorted(ledger.topic for turn in turns for ledger in turn) == sorted(ledger.topic for ledger in opened)
    tiering._next_topics()
    del opened[_TOPICS_A_TICK:]
    assert [len(tiering._next_topics()) for _ in range(2)] == [_TOPICS_A_TICK, _TOPICS_A_TICK], "all of them, each time"


def test_nothing_is_kept_of_topics_that_are_other_brokers_by_now() -> None:
    opened: list[Any] = [SimpleNamespace(topic="stays"), SimpleNamespace(topic="goes")]
    tiering = made(opened)
    for topic in ("stays", "goes"):
        tiering._status[topic], tiering.read_ms[topic] = OffloadStatus(), Recent()
    tiering.read_ms[""] = Recent()  # of topics beyond those that are told apart
    del opened[1]
    tiering._next_topics()
    assert set(tiering.statuses()) == {"stays"} and set(tiering.read_ms) == {"stays", ""}
