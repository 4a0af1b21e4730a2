"""Where a bundle goes that nobody has."""

from __future__ import annotations

import random

from region_node.placement.balance.bundle_placement import choose


def test_placement_prefers_the_emptier_ones_and_takes_no_full_one() -> None:
    rng = random.Random(3)
    chosen = [choose(["a", "b", "c", "d"], {"a": 0.9, "b": 0.5, "c": 0.1}, rng) for _ in range(1000)]
    assert chosen.count("a") == chosen.count("b") == 0 and chosen.count("d") > chosen.count("c") > 200
    same = [choose(["a", "b"], {}, rng) for _ in range(1000)]
    assert 400 < same.count("a") < 600
