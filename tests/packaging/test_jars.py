"""Jars by sums of ours (`benchmarks.maven`)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from benchmarks import maven


def test_a_jar_of_another_sum_or_of_none_is_refused(tmp_path: Path) -> None:
    folder, known = tmp_path / "jars", tmp_path / "known"
    folder.mkdir()
    (folder / "a-1.jar").write_bytes(b"ours")
    known.write_text(f"{hashlib.sha256(b'ours').hexdigest()}  a-1.jar\n")
    maven.check(folder, known)
    (folder / "b-1.jar").write_bytes(b"nobody knows it")
    with pytest.raises(ValueError, match=r"b-1\.jar is not the jar .*sha256 none"):
        maven.check(folder, known)
    (folder / "b-1.jar").unlink()
    (folder / "a-1.jar").write_bytes(b"another")
    with pytest.raises(ValueError, match=r"a-1\.jar is not the jar"):
        maven.check(folder, known)


def test_every_line_is_a_sum_and_a_jar() -> None:
    lines = [line.split("  ") for line in maven.SUMS.read_text().splitlines()]
    assert all(len(sum_of) == 64 and name.endswith(".jar") for sum_of, name in lines)
    assert len({name for _, name in lines}) == len(lines) > 400
