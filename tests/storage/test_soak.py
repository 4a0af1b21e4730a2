"""The soak of storage: every suite has its share of the seeds, and a seed that fails is named with its reason."""

from __future__ import annotations

import pytest

from tests.storage import soak


def test_every_suite_gets_its_share_of_any_seeds() -> None:
    shares = {name: share for name, (_, share) in soak.SUITES.items()}
    for first in (0, 7, 1000):
        names = [soak.suite_of(seed) for seed in range(first, first + 2 * sum(shares.values()))]
        assert {name: names.count(name) for name in shares} == {name: 2 * share for name, share in shares.items()}
    assert soak.suite_of(3, "tiers") == "tiers"


@pytest.mark.parametrize("suite", ["writer", "recovery", "bookie"])
def test_a_seed_that_holds_and_one_that_fails(suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert soak._run((1007, suite)) == (1007, suite, "")

    def wrong(seed: int) -> None:
        raise AssertionError(f"seed {seed} is wrong")

    monkeypatch.setitem(soak.SUITES, suite, (wrong, 1))  # type: ignore[arg-type]
    assert soak._run((8, suite)) == (8, suite, "AssertionError: seed 8 is wrong")
