"""Shares: no role takes more than it leaves free, and the whole is never passed."""

from __future__ import annotations

import random

import pytest

from region_node.faces.kafka.groups.group_shares import Shares


@pytest.mark.parametrize("seed", range(5))
def test_there_is_always_room_for_one_more_role(seed: int) -> None:
    rng, shares, of = random.Random(seed), Shares(1_000), dict[str, int]()
    for _ in range(400):
        role, more = rng.choice("abcde"[: 1 + seed]), rng.randrange(-20, 50)
        if more < 0:
            more = -min(-more, of.get(role, 0))
        elif not shares.has_room(role, more):
            assert of.get(role, 0) + more > 1_000 - shares.total - more
            continue
        shares.add(role, more)
        of[role] = of.get(role, 0) + more
        assert shares.total == sum(of.values()) and max(of.values()) <= 500
        assert shares.total < 1_000


def test_what_is_of_no_role_is_bounded_by_the_whole() -> None:
    shares = Shares(10)
    shares.add("", 9)
    assert shares.has_room("", 1) and not shares.has_room("", 2)
