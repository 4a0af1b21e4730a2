"""What a broker knows to be lost: joined, bounded, believed for a while, and told only once nobody else may have it."""

from __future__ import annotations

from heliograph.model.errors import BookieUnavailable, EntriesLost
from storage.ledger.known_losses import RECHECK_S, KnownLosses


def known(losses: KnownLosses, topic: str = "t") -> list[tuple[int, int, int]]:
    return [(loss.ledger, loss.first, loss.last) for loss in losses.of(topic)]


def test_ranges_are_joined_and_forgotten_with_their_ledger_or_topic() -> None:
    losses = KnownLosses()
    for ledger, first, last in ((5, 10, 19), (5, 30, 39), (5, 20, 24), (4, 0, 0), (5, 10, 19)):
        assert isinstance(losses.told("t", EntriesLost(ledger, first, last), 0.0), EntriesLost)
    losses.told("u", EntriesLost(9, 1, 2), 0.0)
    assert known(losses) == [(4, 0, 0), (5, 10, 24), (5, 30, 39)]
    assert (len(losses), losses.entries) == (4, 28)
    losses.told("t", EntriesLost(5, 25, 29), 0.0)
    assert known(losses) == [(4, 0, 0), (5, 10, 39)] and len(losses) == 3
    losses.forget(5)
    losses.forget(5)
    assert known(losses) == [(4, 0, 0)]
    losses.forget_topic("t")
    assert (known(losses), known(losses, "u"), len(losses)) == ([], [(9, 1, 2)], 1)


def test_what_was_found_is_believed_for_a_while() -> None:
    losses = KnownLosses()
    losses.told("t", EntriesLost(5, 10, 19), 100.0)
    found = losses.at((5, 15), 100.0)
    assert found is not None and (found.ledger, found.first, found.last) == (5, 10, 19)
    assert losses.at((5, 9), 100.0) is losses.at((5, 20), 100.0) is losses.at((6, 15), 100.0) is None
    assert losses.at((5, 15), 100.0 + RECHECK_S) is None
    losses.told("t", EntriesLost(5, 10, 19), 100.0 + RECHECK_S)
    assert losses.at((5, 15), 100.0 + RECHECK_S) is not None


def test_it_is_told_once_all_others_were_asked_since_it_was_first_found() -> None:
    losses, asked = KnownLosses(), list[tuple[str, float]]()
    passed = {"t": -1.0}

    def settled(topic: str, since: float) -> bool:
        asked.append((topic, since))
        return passed[topic] >= since

    losses.ask_elsewhere(settled)
    error = losses.told("t", EntriesLost(5, 10, 19), 7.0)
    assert isinstance(error, BookieUnavailable) and "5" in str(error) and losses.at((5, 12), 7.0) is None
    passed["t"] = 8.0
    assert isinstance(losses.told("t", EntriesLost(5, 10, 24), 9.0), EntriesLost)
    assert losses.at((5, 24), 9.0) is not None and {since for _, since in asked} == {7.0}
    assert isinstance(losses.told("t", EntriesLost(5, 50, 50), 20.0), BookieUnavailable)


def test_ten_thousand_ledgers_are_bounded() -> None:
    losses = KnownLosses(ranges_max=100)
    for ledger in range(10_000):
        losses.told("t", EntriesLost(ledger, 0, 0), 0.0)
    assert len(losses) == len(losses.of("t")) == 100 and losses.of("t")[-1].ledger == 9_999
