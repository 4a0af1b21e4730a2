"""Level 2: brokers that die, or go on as zombies, over bookies and a metadata store in trouble; all from one seed.

After each opening: every entry that anybody was ever told is confirmed stands where it was said to; nothing stands
twice; what one owner appended stands in order, without a hole; what failed for good is not there; replay gave the state
exactly; no cursor has passed what nobody acknowledged, and none has forgotten what it said is durable. In the end all
is healed, and appending must go on.
"""

from __future__ import annotations

import pytest

from tests.storage.managed_ledger.histories import one_history


@pytest.mark.parametrize("seed", range(100))
def test_what_is_confirmed_stays_and_all_else_follows(seed: int) -> None:
    one_history(seed)
