"""What a host's installer asks pip for, which runs as root. Python is recorded here; the real one: tests/system."""

from __future__ import annotations

import re
import subprocess
from hashlib import sha256
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


def carry(folder: Path) -> Path:
    """A folder of two wheels, with their sums beside it."""
    wheels = folder / "wheels"
    wheels.mkdir()
    sums = ""
    for name in ("heliograph_server-1-py3-none-any.whl", "one_more-2-py3-none-any.whl"):
        (wheels / name).write_bytes(name.encode())
        sums += f"{sha256(name.encode()).hexdigest()}  {name}\n"
    (folder / "wheels.sums").write_text(sums + "\n")
    return wheels


@pytest.mark.parametrize("wrong", ["changed", "added", "no sums"])
def test_no_wheel_is_taken_but_as_it_was_sent(tmp_path: Path, wrong: str) -> None:
    """It is installed as root: a folder that others can write to, or a disk, may have made another one of it."""
    said, python, prefix, wheels = tmp_path / "said", tmp_path / "python", tmp_path / "prefix", carry(tmp_path)
    python.write_text(_RECORDED.format(said=said))
    python.chmod(0o755)
    if wrong == "changed":
        (wheels / "one_more-2-py3-none-any.whl").write_bytes(b"another")
    elif wrong == "added":
        (wheels / "one_more-3-py3-none-any.whl").write_bytes(b"a later version")
    else:
        (tmp_path / "wheels.sums").unlink()
    words = ["sh", SCRIPT, prefix, "r1", python, wheels, "", "", "heliograph-server"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert done.returncode == 2 and ("wheels.sums" if wrong == "no sums" else "one_more-") in done.stderr, done.stderr
    assert " install " not in said.read_text() and not (prefix / "releases/r1/complete").exists()


def test_what_is_given_to_root_lies_where_nobody_else_writes(tmp_path: Path) -> None:
    """What another user has put into that place goes, or the step fails."""
    steps = re.findall(r'inline = \["(rm -rf .*?)"\]', (SCRIPT.parents[1] / "main.tf").read_text())
    assert len(steps) == 2
    for number, step in enumerate(steps):
        upload, quiet = tmp_path / f"{number}", tmp_path / "quiet"
        made = step.replace("${local.places[each.key].upload}", str(upload))
        assert "${" not in made
        upload.mkdir(mode=0o777)
        (upload / "install.sh").write_text("somebody's")
        subprocess.run(["sh", "-c", made], check=True, umask=0)
        assert upload.stat().st_mode & 0o777 == 0o700 and not (upload / "install.sh").exists()
        quiet.mkdir(exist_ok=True)
        (quiet / "rm").write_text("#!/bin/sh\n")  # as where the other one makes the folder again in between
        (quiet / "rm").chmod(0o755)
        again = subprocess.run(["sh", "-c", made], env={"PATH": f"{quiet}:/usr/bin:/bin"}, capture_output=True)
        assert again.returncode != 0


@pytest.mark.parametrize("carried", [True, False])
def test_what_was_carried_is_all_that_is_taken(tmp_path: Path, carried: bool) -> None:
    """An index that has a package of one of the names, in a higher version, would be believed otherwise."""
    said, python, prefix = tmp_path / "said", tmp_path / "python", tmp_path / "prefix"
    python.write_text(_RECORDED.format(said=said))
    python.chmod(0o755)
    wheels = str(carry(tmp_path)) if carried else ""
    words = [prefix, "r1", python, wheels, "", "--no-compile --retries 3", "heliograph-server", "one-more"]
    subprocess.run(["sh", str(SCRIPT), *map(str, words)], check=True, umask=0o077)
    (asked,) = (line.split() for line in said.read_text().splitlines() if " install " in line)
    assert asked[-2:] == ["heliograph-server", "one-more"] and "--no-compile" in asked
    assert ("--no-index" in asked) is carried and (f"--find-links {wheels}" in " ".join(asked)) is carried
    assert ("--only-binary :all:" in " ".join(asked)) is carried, "of anything else there is no sum"
    assert (prefix / "releases" / "r1" / "complete").stat().st_mode & 0o777 == 0o644, "the processes' user reads it"
