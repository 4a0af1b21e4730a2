"""The generation file: what it says, and what is set aside."""

from __future__ import annotations

import pytest

from heliograph.model.errors import CorruptData
from heliograph.raft.disk import checksummed_file, generation_file
from heliograph.raft.generations import Standing
from tests.heliograph.raft.disk.opened_log import platter


@pytest.mark.parametrize("standing", [Standing(5), Standing(0, 6), Standing(0, 7, True)])
def test_what_is_written_is_read(standing: Standing) -> None:
    disk = platter().disk()
    assert generation_file.read(disk) == Standing()
    assert generation_file.write(disk, standing)
    assert generation_file.read(disk) == standing


def test_what_was_left_behind_is_set_aside_and_nothing_of_it_is_lost() -> None:
    disk = platter().disk()
    for name in ("log-0000000001", "life", "starts"):
        checksummed_file.replace(disk, name, name.encode())
    generation_file.write(disk, Standing(0, 7))
    assert generation_file.begin(disk) == Standing(0, 7)
    generation_file.write(disk, Standing(0, 7, True))
    disk.rename("life", "aside-0000000000000007-life")  # it was interrupted
    assert generation_file.begin(disk) == Standing(7), "it does not go back to who was left behind"
    kept = ["aside-0000000000000007-life", "aside-0000000000000007-log-0000000001"]
    assert disk.names() == [*kept, "generation", "starts"]
    assert checksummed_file.read(disk, "aside-0000000000000007-life") == b"life"
    assert generation_file.begin(disk) == Standing(7)
    checksummed_file.replace(disk, "life", b"later")
    generation_file.write(disk, Standing(0, 7, True))
    assert generation_file.begin(disk) == Standing(7)
    assert disk.names() == [kept[0], f"{kept[0]}-2", kept[1], "generation", "starts"]
    assert checksummed_file.read(disk, f"{kept[0]}-2") == b"later", "what was set aside is never overwritten"


def test_a_stage_that_is_not_known_is_refused() -> None:
    disk = platter().disk()
    checksummed_file.replace_numbers(disk, generation_file.GENERATION, 5, 9, ())
    with pytest.raises(CorruptData):
        generation_file.read(disk)
