"""The file of starts: it comes back as it was written; a full disk changes nothing; damage says what to do."""

from __future__ import annotations

import errno

import pytest

from heliograph.model.errors import CorruptData
from heliograph.raft.disk import starts_file
from heliograph.raft.starts import StartsRecord, following, number_of
from tests.heliograph.raft.disk.opened_log import platter


def test_what_is_written_comes_back() -> None:
    on = platter()
    assert starts_file.read(on.disk()) == StartsRecord()
    for confirmed in (True, False):
        record = StartsRecord(following(3, 9), confirmed, (("a", 7), ("bé", 1 << 62)))
        assert starts_file.write(on.disk(), record)
        assert starts_file.read(on.disk()) == record


def test_a_start_is_durable_when_it_is_begun() -> None:
    on = platter()
    first = starts_file.begin(on.disk(), 1 << 40 | 5)
    on.power_cut()
    assert starts_file.begin(on.disk(), 9) == first == starts_file.read(on.disk()), "nobody has heard of it"
    starts_file.write(on.disk(), StartsRecord(first.own, True))
    assert number_of(starts_file.begin(on.disk(), 9).own) == 2


def test_a_full_disk_gives_the_same_start_again() -> None:
    on = platter()
    starts_file.write(on.disk(), before := StartsRecord(following(0, 5), True, (("b", 3),)))
    on.capacity_bytes = on.used_bytes()
    assert starts_file.begin(on.disk(), 9) == before
    assert not starts_file.write(on.disk(), StartsRecord())
    assert not on.open_files, "what could not be written is closed"
    assert starts_file.read(on.disk()) == before


@pytest.mark.parametrize("refusal", [OSError(errno.ENOMEM, ""), MemoryError()])
def test_without_memory_the_start_before_stays(refusal: Exception) -> None:
    on = platter()
    starts_file.write(on.disk(), before := StartsRecord(following(0, 5), True, (("b", 3),)))
    disk, on.open_files_max, on.refusal = on.disk(), on.open_files, refusal
    assert not starts_file.write(disk, StartsRecord())
    on.open_files_max = 1
    assert starts_file.read(disk) == before and starts_file.write(disk, StartsRecord())


def test_damage_says_what_to_do() -> None:
    on = platter()
    starts_file.write(on.disk(), StartsRecord(following(0, 5)))
    on.flip_bit(starts_file.STARTS, 3)
    with pytest.raises(CorruptData, match="empty the folder"):
        starts_file.read(on.disk())
