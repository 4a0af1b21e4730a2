"""What a host's installer asks pip for, which runs as root. Python is recorded here; the real one: tests/system."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "terraform" / "modules" / "region" / "scripts" / "install.sh"
_RECORDED = """#!/bin/sh
echo "$@" >> '{said}'
case "$1 $2" in
  "-c import"*print*) echo /usr ;;
  "-m venv") for target; do :; done; mkdir -p "$target" ;;
esac
"""


@pytest.mark.parametrize("carried", [True, False])
def test_what_was_carried_is_all_that_is_taken(tmp_path: Path, carried: bool) -> None:
    """An index that has a package of one of the names, in a higher version, would be believed otherwise."""
    said, python, prefix = tmp_path / "said", tmp_path / "python", tmp_path / "prefix"
    python.write_text(_RECORDED.format(said=said))
    python.chmod(0o755)
    wheels = str(tmp_path / "wheels") if carried else ""
    words = [prefix, "r1", python, wheels, "", "--no-compile --retries 3", "heliograph-server", "one-more"]
    subprocess.run(["sh", str(SCRIPT), *map(str, words)], check=True, umask=0o077)
    (asked,) = (line.split() for line in said.read_text().splitlines() if " install " in line)
    assert asked[-2:] == ["heliograph-server", "one-more"] and "--no-compile" in asked
    assert ("--no-index" in asked) is carried and (f"--find-links {wheels}" in " ".join(asked)) is carried
    assert (prefix / "releases" / "r1" / "complete").stat().st_mode & 0o777 == 0o644, "the processes' user reads it"
