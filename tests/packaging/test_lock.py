"""The locked versions: each line has the sums of its files, pip takes no others, and what is installed apart has the
same versions.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import lock

ROOT = Path(__file__).resolve().parents[2]
SUM = "ab" * 32


@pytest.mark.parametrize("name", lock.LOCKS)
def test_every_version_has_the_sums_of_its_files(name: str) -> None:
    text = (lock.FOLDER / name).read_text()
    assert lock.read(text) and not lock.faults(text)


@pytest.mark.parametrize("name", ["server.txt", "build.txt"])
def test_what_is_installed_apart_has_the_versions_of_the_lock(name: str) -> None:
    whole = {one.name: one for one in lock.read((lock.FOLDER / "lock.txt").read_text())}
    apart = lock.read((lock.FOLDER / name).read_text())
    assert [(one.version, one.hashes) for one in apart] == [
        (whole[one.name].version, whole[one.name].hashes) for one in apart
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"a==1 \\\n    --hash=sha256:{SUM}\nb==2 ; os_name == 'nt' \\\n    --hash=sha256:{SUM}", []),
        (f"a==1 \\\n    --hash=sha256:{SUM}\nb==2", ["b==2 has no sum of its files; run `make lock`"]),
        (f"a==1 --hash=sha256:{SUM} --hash=sha256:{SUM[1:]}", ["a==1 has a sum that is no sha256; run `make lock`"]),
    ],
)
def test_a_version_without_sums_is_found(text: str, said: list[str]) -> None:
    assert lock.faults(text) == said


@pytest.mark.parametrize("line", ["a>=1", "-e .", "a @ https://a.example/a.whl"])
def test_a_line_that_is_no_exact_version_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="run `make lock`"):
        lock.read(line)


def test_what_was_taken_back_is_named() -> None:
    said = 'Resolved 2 packages\nwarning: `a==1.0` is yanked (reason: "broken")\nwarning: `b==2` is yanked\n'
    assert lock.yanked(said) == [
        'a==1.0 was taken back by its makers ("broken")',
        "b==2 was taken back by its makers (no reason given)",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_a_file_with_another_sum_stops_the_set_up_with_what_to_do(tmp_path: Path, whole: bool) -> None:
    """As `tools/setup.py` installs, from a folder in place of the index."""
    wheel = tmp_path / "locked-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("locked.py", "")
        file.writestr("locked-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: locked\nVersion: 1.0\n")
        file.writestr("locked-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("locked-1.0.dist-info/RECORD", "")
    text = f"locked==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest() if whole else SUM}\n"
    (tmp_path / "lock.txt").write_text(text)
    step = (
        "import sys; from tools import setup; setup.step('installing', [sys.executable, *setup._LOCKED, sys.argv[1], "
        "'--no-index', '--find-links', sys.argv[2], '--target', sys.argv[3]])"
    )
    words = [sys.executable, "-c", step, str(tmp_path / "lock.txt"), str(tmp_path), str(tmp_path / "there")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode == 0) is whole, done.stdout + done.stderr
    assert (tmp_path / "there" / "locked.py").exists() is whole
    assert whole or ("not the one that was locked" in done.stderr and "make lock" in done.stderr), done.stderr


def test_toxiproxy_is_built_from_modules_whose_sums_are_ours() -> None:
    folder = ROOT / "region_node" / "instance" / "toxiproxy"
    wanted = re.findall(r"^\t(\S+ v\S+)", (folder / "go.mod").read_text(), re.MULTILINE)
    sums = re.findall(r"^(\S+ v\S+) h1:\S{43}=$", (folder / "go.sum").read_text(), re.MULTILINE)
    assert len(wanted) >= 10 and not set(wanted) - set(sums)


def test_the_image_takes_nothing_without_a_sum() -> None:
    asked = (ROOT / "deploy" / "Dockerfile").read_text().split("pip install ")[1:]
    words = [command.partition("&&")[0].split() for command in asked]
    assert [("--require-hashes" in each, "--no-index" in each) for each in words] == [(True, False), (False, True)]
