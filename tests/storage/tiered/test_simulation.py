"""Tiering under everything at once, from one seed: brokers that die or go on as zombies, a store and metadata in
trouble, trims, and sweeps at any time.

After each opening: every entry that was confirmed and not trimmed stands where it was, whichever copy it is read from.
At all times: what the metadata calls stored is there, and whole. In the end all is healed: everything closed is
offloaded, no local copy is left, and no object that nobody names.
"""

from __future__ import annotations

import pytest

from tests.storage.tiered.histories import one_history


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_nothing_is_lost_and_nothing_is_left_over(seed: int) -> None:
    one_history(seed)
