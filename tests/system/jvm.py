"""What the tests with Java have in common: the official client and its tools from Maven, our own few classes compiled
beside them.

Is: jars in the cache, a class of `tests/system/java` in a JVM, and `AdminShell`, many command lines of pulsar-admin in
one JVM.
Isn't: a Pulsar server (`benchmarks.servers`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from benchmarks.cache import once
from benchmarks.maven import copy_dependencies

SOURCES = Path(__file__).resolve().parent / "java"


def jars() -> Path:
    """The official Java client and pulsar-admin, fetched by Maven the first time; skips the test in one sentence where
    that cannot be.
    """
    if shutil.which("java") is None or shutil.which("javac") is None:
        pytest.skip("the official Java client needs a JDK 17 or newer on this machine; it is absent")

    def fetch(scratch: Path) -> None:
        if shutil.which("mvn") is None:
            pytest.skip("the official Java client needs Maven on this machine to be fetched; it is absent")
        copy_dependencies(SOURCES / "pom.xml", scratch)

    return once("pulsar-tools-4.0.6", fetch)


def program(name: str) -> list[str]:
    """The command line that runs class `name` of `tests/system/java`."""
    found, source = jars(), SOURCES / f"{name}.java"

    def compile_into(scratch: Path) -> None:
        subprocess.run(["javac", "-cp", f"{found}/*", "-d", str(scratch), str(source)], check=True)

    classes = once(f"java/{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}", compile_into)
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{found}/*", name]


class AdminShell:
    """The official pulsar-admin against one server."""

    def __init__(self, web_port: int) -> None:
        command = [*program("AdminShell"), f"http://127.0.0.1:{web_port}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def __call__(self, words: list[str]) -> dict[str, Any]:
        """{"ok", "out", "err"} of one command line."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    def __enter__(self) -> AdminShell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
