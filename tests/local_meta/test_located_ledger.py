"""What is stored of where a ledger lies."""

from __future__ import annotations

import pytest

from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import pack
from local_meta.located_ledger import NOWHERE, LocatedLedger


def test_it_is_read_as_it_was_written_and_what_is_not_it_is_refused() -> None:
    place = LocatedLedger(7, "t", 70, 1 << 62, 71, 3, 1_700_000_000_000)
    assert LocatedLedger.decode(place.encode()) == place
    assert LocatedLedger.decode(LocatedLedger(7, "t").encode()) == LocatedLedger(7, "t", NOWHERE, 0, NOWHERE, 0, 0)
    for blob in (b"", pack([1, 2]), pack([1], 2), place.encode()[:-3]):
        with pytest.raises(CorruptData):
            LocatedLedger.decode(blob)


def test_once_it_has_moved_nothing_is_said_of_a_copy() -> None:
    assert LocatedLedger(7, "t", 70, 1, 71, 3, 9).moved == LocatedLedger(7, "t", 71, 3)
