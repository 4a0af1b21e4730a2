"""A p99 is read off counts as closely as their bounds allow, and what a broker's restart hides is not made up."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest

from region_node.dr.drill_settings import DrillSettings
from region_node.dr.rehearsal.publish_latency import between, judged, p99_ms, text
from storage.managed_ledger.append_counts import FINE_S

NONE = [0] * (len(FINE_S) + 1)


def counts(*took_ms: float) -> list[int]:
    out = list(NONE)
    for took in took_ms:
        out[bisect_left(FINE_S, took / 1000)] += 1
    return out


@pytest.mark.parametrize("seed", range(50))
def test_a_p99_is_a_fifth_from_the_true_one_at_most(seed: int) -> None:
    rng = random.Random(seed)
    took = sorted(rng.expovariate(1 / rng.choice((2, 20, 400))) for _ in range(5000))
    found, true = p99_ms(counts(*took)), took[4949]
    assert found is not None and true / 1.2 <= found <= true * 1.2


def test_what_takes_longer_than_anything_that_is_counted_is_not_a_number() -> None:
    assert p99_ms(counts(*[1.0] * 50, *[60_000.0] * 50)) is None
    slow, fast = counts(*[60_000.0] * 200), counts(*[1.0] * 200)
    assert judged(fast, slow, DrillSettings())["verdict"] == "broken"
    assert judged(slow, slow, DrillSettings())["verdict"] == "not measured", "it may have become slower still"
    assert "10000 ms or more" in text("eu", judged(fast, slow, DrillSettings()))


def test_of_a_few_messages_nothing_is_said_to_be_well() -> None:
    enough = counts(*[1.0] * 100)
    assert judged(enough, counts(*[1.0] * 99), DrillSettings())["verdict"] == "too little traffic"
    assert judged(counts(1.0), NONE, DrillSettings())["verdict"] == judged(NONE, enough, DrillSettings())["verdict"]
    assert judged(NONE, enough, DrillSettings())["verdict"] == "no traffic"
    assert judged(None, enough, DrillSettings()) == {"verdict": "not measured"}
    assert judged(enough, enough, DrillSettings())["verdict"] == "kept"


def test_publishing_that_has_nearly_stopped_is_not_said_to_be_well() -> None:
    much, settings = counts(*[1.0] * 10_000), DrillSettings()
    for left in (0, 99, 900):
        assert judged(much, counts(*[1.0] * left), settings)["verdict"] == "not measured"
    assert judged(much, counts(*[1.0] * 1000), settings)["verdict"] == "kept"
    assert judged(much, counts(*[1.0] * 1000), settings, (10.0, 200.0))["verdict"] == "not measured"
    assert judged(much, counts(*[1.0] * 99), settings, (10.0, 0.1))["verdict"] == "too little traffic"


def test_brokers_are_added_up_and_what_one_took_along_is_not_made_up() -> None:
    a, b = counts(1.0, 1.0), counts(30.0)
    assert between({"a": a, "b": b}, {"a": counts(1.0, 1.0, 5.0), "b": counts(30.0, 40.0)}) == counts(5.0, 40.0)
    assert between({"a": a}, {"a": counts(1.0)}) is None, "it has fewer than before"
    assert between({"a": a, "b": b}, {"a": a, "c": counts(7.0)}) is None, "one is gone with what it had"
    assert between({"a": a, "b": NONE}, {"a": a, "c": counts(7.0)}) == counts(7.0), "it had nothing"
    assert between({"a": a}, {"a": []}) is None, "it does not count the namespace by itself any more"
