"""`heliograph bookie inspect` and `fsck`: every flipped byte of what counts is named, what is whole passes, and nothing
is changed.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from heliograph.model.errors import ConfigError
from heliograph.runtime.clock import SystemClock
from heliograph.runtime.system_disk import SystemDisk
from heliograph.wire.bookie_frames import Kind, encode
from region_node.commands.storage.bookie_commands import register
from storage.bookie.maintenance.fsck import examine
from storage.bookie.serving.bookie import Bookie, DirectoryPlace
from tests.storage.bookie.history import SMALL, NotingPeer, add, block, send

APP = typer.Typer()
register(APP)


async def acked(peer: NotingPeer, ledger: int, through: int) -> None:
    while peer.acks.get(ledger, -1) < through:  # noqa: ASYNC110
        await asyncio.sleep(0.002)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two logs, a fence, a deletion, and a tail in the journal."""

    async def main() -> None:
        journals, ledgers = (
            [DirectoryPlace(SystemDisk(tmp_path / "journal"))],
            [DirectoryPlace(SystemDisk(tmp_path / "ledgers"))],
        )
        bookie = Bookie(
            journals, ledgers, SMALL, bookie_id="b7", instance="eu", rng=random.Random(1), clock=SystemClock()
        )
        bookie.start()
        peer = NotingPeer()
        for turn in range(2):
            send(bookie, peer, *[add(ledger, turn * 10, 5, lac=turn * 10 - 1) for ledger in (1, 2, 3)])
            await acked(peer, 3, turn * 10 + 4)
            bookie.flush()
            while bookie.flushing:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        send(
            bookie,
            peer,
            encode(Kind.FENCE, ledger=1, request=1),
            encode(Kind.DELETE, ledger=3, request=2),
            add(2, 15, 5),
        )
        await acked(peer, 2, 19)
        bookie.close()

    asyncio.run(main())
    return tmp_path


WIDE = ("journal", "journal1"), ("ledgers", "ledgers1", "ledgers2")


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """Two journal and three ledger directories; ledgers 1 to 20, half in logs, half in the journals."""

    async def main() -> None:
        journals, ledgers = ([DirectoryPlace(SystemDisk(tmp_path / name)) for name in names] for names in WIDE)
        bookie = Bookie(
            journals, ledgers, SMALL, bookie_id="b7", instance="eu", rng=random.Random(1), clock=SystemClock()
        )
        bookie.start()
        peer = NotingPeer()
        for turn in range(2):
            send(bookie, peer, *[add(ledger, turn * 5, 5) for ledger in range(1, 21)])
            for ledger in range(1, 21):
                await acked(peer, ledger, turn * 5 + 4)
            if not turn:
                bookie.flush()
                while bookie.flushing:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
        send(bookie, peer, *[encode(Kind.DELETE, ledger=ledger, request=ledger) for ledger in (5, 6, 7)])
        bookie.close()

    asyncio.run(main())
    return tmp_path


def options(data: Path, journals: tuple[str, ...] = WIDE[0], ledgers: tuple[str, ...] = WIDE[1]) -> list[str]:
    given = ["--data", str(data)]
    for option, names in (("--journal", journals), ("--ledgers", ledgers)):
        for name in names:
            given += [option, str(data / name)]
    return given


def test_several_directories_are_examined_together(wide: Path) -> None:
    before = snapshot(wide)
    answer = CliRunner().invoke(APP, ["bookie", "fsck", *options(wide)])
    assert answer.exit_code == 0 and "bookie b7 is whole: 17 ledgers, 170 entries" in answer.output, answer.output
    answer = CliRunner().invoke(APP, ["bookie", "inspect", *options(wide), "--json"])
    found = json.loads(answer.output)
    assert [one["ledger"] for one in found["ledgers"]] == [*range(1, 5), *range(8, 21)]
    assert all(one["ranges"] == [[0, 9]] for one in found["ledgers"]) and {
        log["directory"] for log in found["logs"]
    } == {0, 1, 2}
    for wrong in (
        options(wide, WIDE[0][::-1]),
        options(wide, WIDE[0][:1]),
        options(wide, WIDE[0], ("ledgers", "ledgers2", "ledgers1")),
        options(wide, WIDE[0], WIDE[1][:2]),
        ["--data", str(wide)],
    ):
        answer = CliRunner().invoke(APP, ["bookie", "fsck", *wrong])
        assert answer.exit_code == 1 and "in their order" in answer.output, answer.output
    log = next((wide / "ledgers2").glob("log-*"))
    flip(log, 300)
    answer = CliRunner().invoke(APP, ["bookie", "fsck", *options(wide)])
    assert answer.exit_code == 1 and f"{log.name} of ledger directory 3" in answer.output
    flip(log, 300)
    assert snapshot(wide) == before


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 4
    file.write_bytes(content)


def snapshot(data: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(data.rglob("*")) if file.is_file()}


def look(data: Path) -> list[str]:
    return examine([SystemDisk(data / "journal")], [SystemDisk(data / "ledgers")], verify_blocks=True).problems


def test_what_is_whole_passes_and_is_listed(data: Path) -> None:
    before = snapshot(data)
    answer = CliRunner().invoke(APP, ["bookie", "fsck", "--data", str(data)])
    assert answer.exit_code == 0 and "bookie b7 is whole: 2 ledgers, 25 entries" in answer.output, answer.output
    answer = CliRunner().invoke(APP, ["bookie", "inspect", "--data", str(data), "--json"])
    found = json.loads(answer.output)
    assert answer.exit_code == 0 and (found["instance"], found["bookie"], found["journal_records"]) == ("eu", "b7", 1)
    one, two = found["ledgers"]
    assert (one["ledger"], one["ranges"], one["lac"], one["fenced"], one["logs"], one["journal"]) == (
        1,
        [[0, 4], [10, 14]],
        9,
        True,
        [0, 1],
        False,
    )
    assert (two["ledger"], two["ranges"], two["fenced"], two["journal"], two["entries"]) == (
        2,
        [[0, 4], [10, 19]],
        False,
        True,
        15,
    )
    answer = CliRunner().invoke(APP, ["bookie", "inspect", "--data", str(data), "--ledger", "2"])
    assert answer.exit_code == 0 and "0-4, 10-19" in answer.output
    assert snapshot(data) == before


def test_damage_is_named_and_exits_with_1(data: Path) -> None:
    log = data / "ledgers" / "log-000000000001"
    flip(log, log.read_bytes().index(block(2, 10, 5)) + 300)
    answer = CliRunner().invoke(APP, ["bookie", "fsck", "--data", str(data)])
    assert answer.exit_code == 1
    assert "damage: log-000000000001, ledger 2, block of entry 10: block: checksum mismatch" in answer.output
    assert "bookie b7 is damaged: 1 problems" in answer.output
    answer = CliRunner().invoke(APP, ["bookie", "fsck", "--data", str(data), "--json"])
    assert answer.exit_code == 1 and len(json.loads(answer.output)["problems"]) == 1


def test_damage_of_a_deleted_ledger_is_none(data: Path) -> None:
    log = data / "ledgers" / "log-000000000001"
    flip(log, log.read_bytes().index(block(3, 10, 5)) + 300)
    found = examine([SystemDisk(data / "journal")], [SystemDisk(data / "ledgers")], verify_blocks=True)
    assert not found.problems and "deleted" in found.notes[0]


@pytest.mark.parametrize("seed", range(40))
def test_any_flipped_byte_of_blocks_and_indexes_is_found(data: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = data / "ledgers" / f"log-{rng.randrange(2):012d}"
    content = log.read_bytes()
    at = rng.randrange(16, len(content))
    deleted = next(one for one in (block(3, 0, 5), block(3, 10, 5)) if one in content)
    start = content.index(deleted)
    flip(log, at)
    if not start <= at < start + len(deleted):
        assert look(data), f"byte {at} of {len(content)}"


def test_losses_are_found(data: Path) -> None:
    files = {
        "ledgers/checkpoint": "checkpoint is gone",
        "ledgers/log-000000000000": "is gone, and the checkpoint names it",
        "journal/cookie": "no cookie",
    }
    for name, sentence in files.items():
        content = (data / name).read_bytes()
        (data / name).unlink()
        assert any(sentence in problem for problem in look(data)), (name, look(data))
        (data / name).write_bytes(content[:-1])
        assert look(data), name
        (data / name).write_bytes(content)
    assert not look(data)


def test_what_a_flush_left_half_done_is_no_damage(data: Path) -> None:
    (data / "ledgers" / "log-000000000077").write_bytes(b"half")
    found = examine([SystemDisk(data / "journal")], [SystemDisk(data / "ledgers")], verify_blocks=True)
    assert not found.problems and "log-000000000077" in found.notes[0]


def test_a_folder_that_is_none_of_a_bookie_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    for command in ("inspect", "fsck"):
        answer = CliRunner().invoke(APP, ["bookie", command, "--data", str(tmp_path)])
        assert isinstance(answer.exception, ConfigError) and "is not the data folder of a bookie" in str(
            answer.exception
        )
    assert not list(tmp_path.iterdir())
