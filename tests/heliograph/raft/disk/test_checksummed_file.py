"""Small files beside a log: those with numbers in them are, byte for byte, what earlier versions wrote."""

from __future__ import annotations

import pytest

from heliograph.model.errors import CorruptData
from heliograph.raft.disk import checksummed_file, life_file, starts_file
from heliograph.raft.starts import StartsRecord
from tests.heliograph.raft.disk.opened_log import platter

LIFE = "0100000900000000000300020000000000000007016140000000000000000362c3a9557eeca3"
STARTS = "010000000300000005020001000000000000000701617c028337"


def test_numbers_lie_as_they_always_did() -> None:
    on = platter()
    life_file.prove(on.disk(), 9 << 40, (("a", 7), ("b\u00e9", 1 << 62)))
    starts_file.write(on.disk(), StartsRecord(3 << 32 | 5, False, (("a", 7),)))
    assert on.content(life_file.LIFE).hex() == LIFE
    assert on.content(starts_file.STARTS).hex() == STARTS


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x02" + bytes(20), b"\x01" + bytes(8) + b"\x01\x00\x09"])
def test_what_is_no_number_says_what_to_do(body: bytes) -> None:
    on = platter()
    checksummed_file.replace(on.disk(), "numbers", body)
    with pytest.raises(CorruptData, match="empty the folder"):
        checksummed_file.read_numbers(on.disk(), "numbers")
