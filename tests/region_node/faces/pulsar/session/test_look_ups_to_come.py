"""Which look-ups are led away: each once, soon, and no more of them than fit."""

from __future__ import annotations

from region_node.faces.pulsar.session.look_ups_to_come import LED_S, LookUpsToCome


def test_each_is_led_away_once_and_in_time() -> None:
    told: LookUpsToCome[str] = LookUpsToCome(10)
    assert not told.take("a", 0.0) and not told.note("a", 0.0) and told
    assert told.take("a", LED_S - 1) and not told.take("a", LED_S - 1) and not told
    told.note("a", 0.0)
    assert told.awaits("a", LED_S - 1) and not told.awaits("b", 0.0) and not told.awaits("a", LED_S)
    assert not told.take("a", LED_S)


def test_who_is_told_again_before_a_look_up_is_seen() -> None:
    told: LookUpsToCome[str] = LookUpsToCome(10)
    told.note("a", 0.0)
    assert not told.note("b", 1.0) and told.note("a", 2.0)
    assert told.take("a", LED_S + 1), "the later one counts"
    assert not told.note("b", LED_S + 1), "its time was over"


def test_the_oldest_are_forgotten() -> None:
    told: LookUpsToCome[int] = LookUpsToCome(2)
    for n in range(3):
        told.note(n, float(n))
    assert [told.take(n, 3.0) for n in range(3)] == [False, True, True]
    told.note(0, 0.0)
    told.note(1, LED_S)
    assert told.take(1, LED_S) and not told, "what is over takes no room"
