"""Folders that others cannot enter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from region_node.runtime.private_files import keep_files_private, private_folder, shut


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> str:
    return oct(path.stat().st_mode & 0o7777)


def test_a_folder_is_made_or_shut_for_its_owner_alone(tmp_path: Path) -> None:
    private_folder(tmp_path / "new" / "inner")
    assert mode(tmp_path / "new" / "inner") == "0o700"
    (tmp_path / "old").mkdir(0o755)
    private_folder(tmp_path / "old")
    assert mode(tmp_path / "old") == "0o700"


def test_a_folder_of_everybody_or_of_nobody_known_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    shut(tmp_path / "shared")
    assert mode(tmp_path / "shared") == "0o1777"
    shut(tmp_path / "absent")
    (tmp_path / "theirs").mkdir(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: (tmp_path / "theirs").stat().st_uid + 1)
    shut(tmp_path / "theirs")
    assert mode(tmp_path / "theirs") == "0o755"


def test_what_is_made_later_is_private(tmp_path: Path) -> None:
    keep_files_private()
    (tmp_path / "a").write_text("")
    (tmp_path / "b").mkdir()
    assert (mode(tmp_path / "a"), mode(tmp_path / "b")) == ("0o600", "0o700")
