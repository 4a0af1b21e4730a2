"""The process around ClickHouse's engine, with a small one in its place; with the real one:
tests/system/test_spark_tables.py.
"""

from __future__ import annotations

import fcntl
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.model.errors import ConfigError, MetadataUnavailable
from heliograph.spark.stores.embedded import ChdbEngine, serve

SMALL = """
import os

class Session:
    def __init__(self, folder):
        self.folder = folder

    def query(self, text, form):
        if text == "DIE":
            os._exit(7)
        if text == "BAD":
            raise RuntimeError("it is no SQL")
        print("not an answer")
        self.found = f"{os.getpid()} {self.folder} {text}"
        return self

    def data(self):
        return self.found

    def close(self):
        with open(os.path.join(self.folder, "closed"), "a") as file:
            file.write("x")
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ChdbEngine]]:
    package = tmp_path / "packages" / "chdb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "session.py").write_text(SMALL)
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    made = []

    def make(name: str) -> ChdbEngine:
        made.append(ChdbEngine(str(tmp_path / name)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def pid(answer: bytes) -> int:
    return int(answer.split()[0])


def test_each_folder_has_a_process_which_is_kept_between_batches(
    engine: Callable[[str], ChdbEngine], tmp_path: Path
) -> None:
    one, two = engine("one"), engine("two")
    first = one.run("INSERT", b"\xc3\xa6" * 100_000)
    assert first == f"{pid(first)} {tmp_path / 'one'} INSERT\n{'æ' * 100_000}".encode()
    other = two.run("SELECT")
    assert len({pid(first), pid(other), os.getpid()}) == 3
    with pytest.raises(ConfigError, match="ClickHouse refuses: it is no SQL"):
        one.run("BAD")
    one.release()
    assert pid(one.run("SELECT")) == pid(first), "the process stayed"
    one.release()
    assert pid(engine("one").run("SELECT")) not in (pid(first), pid(other)), "another process may have the folder"
    assert (tmp_path / "one" / "closed").read_text() == "xx"
    with pytest.MonkeyPatch.context() as without:
        without.setattr(sys, "path", [])
        with pytest.raises(ConfigError, match="chdb"):
            engine("three")


def test_a_process_that_died_is_said_and_started_again(engine: Callable[[str], ChdbEngine]) -> None:
    one = engine("one")
    first = pid(one.run("SELECT"))
    with pytest.raises(MetadataUnavailable, match=r"exit code 7\); the batch is delivered again"):
        one.run("DIE")
    second = pid(one.run("SELECT"))
    assert second != first
    one.release()
    os.kill(second, signal.SIGKILL)  # between two batches: nothing was under way
    assert pid(one.run("SELECT")) not in (first, second)


def asked(folder: Path, *requests: bytes, connect: Callable[[str], Any], lock_s: float = 60.0) -> list[bytes]:
    """What a driver gets that asks all that and is gone then."""
    inner, outer = os.pipe()
    os.write(outer, b"".join(len(each).to_bytes(4, "big") + each for each in requests))
    os.close(outer)
    given, answers = io.BytesIO(), []
    with io.FileIO(inner, "rb") as pipe:
        serve(folder, pipe, given, connect, lock_s=lock_s)
    given.seek(0)
    while head := given.read(4):
        answers.append(given.read(int.from_bytes(head, "big")))
    return answers


class Small:
    def __init__(self, folder: str) -> None:
        if (Path(folder) / "broken").exists():
            raise RuntimeError("a broken folder")

    def query(self, text: str, form: str) -> Small:
        return self

    def data(self) -> str:
        return "found"

    def close(self) -> None:
        """Nothing is open."""


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    assert asked(tmp_path, b"SELECT", b"", b"SELECT", connect=Small) == [b"\0found", b"\0found"]
    with (tmp_path / "heliograph.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert asked(tmp_path, b"SELECT", connect=Small, lock_s=0.1) == [b"\2"]
    assert asked(tmp_path, b"SELECT", connect=Small) == [b"\0found"], "it was let go of, by both"
    (tmp_path / "broken").touch()
    assert asked(tmp_path, b"SELECT", b"SELECT", connect=Small) == [b"\1a broken folder"] * 2


def test_a_process_that_nobody_asks_ends(tmp_path: Path) -> None:
    inner, outer = os.pipe()  # which stays open: the driver is there
    with io.FileIO(inner, "rb") as pipe:
        serve(tmp_path, pipe, io.BytesIO(), Small, idle_s=0.0)
    os.close(outer)
