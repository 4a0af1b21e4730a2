"""A reader of the guide: gives a page's commands to bash, in one folder, and looks whether they print what the page
shows.

Is: `Shell` (what a terminal keeps from one command to the next: folder and variables), and `Reader`, who goes through a
page. Isn't: the instance that they are given to, or what is asserted between them; each page's test has that.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.guide.forks import begin
from tests.guide.page import Command, Page

_ENDS_S = 120.0
_COMMAND_S = 900.0
_ASKS = "# asks"
"""In a command's comment: it wants to hear yes."""


class Shell:
    """places: what stands on the page -> what is there instead (addresses, most of all). prefix: of every command line,
    say `ip netns exec NAME`.

    `heliograph` is forked from a process that has imported it already: a page's commands would else take longer to
    start than to run.
    """

    def __init__(
        self, folder: Path, *, places: Mapping[str, str] | None = None, prefix: Sequence[str] = (), **environment: str
    ) -> None:
        self.folder, self.places, self.prefix = folder, dict(places or {}), list(prefix)
        self.said: list[str] = []
        self._scratch = Path(tempfile.mkdtemp(prefix="guide"))
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("HELIOGRAPH_") or name == "HELIOGRAPH_TOXIPROXY"
        }
        path = f"{self._scratch}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        self.environment = {**kept, "PATH": path, "PWD": str(folder), **environment}
        self._staying: list[subprocess.Popen[str]] = []
        self._forks = begin(self._scratch, self.prefix)

    def __enter__(self) -> Self:
        assert self._forks.stdout is not None and self._forks.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._staying:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.communicate(timeout=_ENDS_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._forks.pid, signal.SIGKILL)
        self._forks.communicate()
        for path in self._scratch.iterdir():
            path.unlink()
        self._scratch.rmdir()

    def program(self, name: str, command: Sequence[str]) -> None:
        """Another program that pages name: what is run in its place, with what follows it."""
        (self._scratch / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (self._scratch / name).chmod(0o755)

    def run(self, command: Command | str, *, codes: Sequence[int] = (0,)) -> str:
        """What it prints. codes: that it may end with. Raises AssertionError where it fails, or prints something else
        than is shown.
        """
        if isinstance(command, str):
            command = Command(command)
        text = self._placed(command.text)
        if command.stays:
            return self._begin(text, command)
        state = self._scratch / "state"
        script = f"set -a -o pipefail\n{text}\n__code=$?\nenv -0 > {state}\nexit $__code"
        answers = "yes\n" * 9 if _ASKS in command.text else ""
        words = [*self.prefix, "bash", "--norc", "--noprofile", "-c", script]
        folder, environment = self.environment["PWD"], self.environment
        done = subprocess.run(
            words, input=answers, capture_output=True, text=True, timeout=_COMMAND_S, cwd=folder, env=environment
        )
        assert done.returncode in codes, f"{text}\n{done.returncode}: {done.stdout}{done.stderr}"
        self.environment = dict(pair.split("=", 1) for pair in state.read_text().split("\0") if "=" in pair)
        self._compare(command, text, done.stdout)
        self.said.append(done.stdout)
        return done.stdout

    def _begin(self, text: str, command: Command) -> str:
        environment = {
            **self.environment,
            "PATH": self.environment["PATH"].replace(f"{self._scratch}{os.pathsep}", ""),
        }  # its end is ours: no fork of another
        process = subprocess.Popen(
            [*self.prefix, "bash", "--norc", "--noprofile", "-c", f"exec {text}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            cwd=environment["PWD"],
            env=environment,
            start_new_session=True,
        )
        self._staying.append(process)
        assert process.stdout is not None
        said = "".join(process.stdout.readline() for _ in command.shown)
        self._compare(command, text, said)
        self.said.append(said)
        return said

    def _compare(self, command: Command, text: str, said: str) -> None:
        shown = [self._placed(line) for line in command.shown]
        assert not shown or pattern(shown).fullmatch(_even(said)), (
            f"{text}\nprints\n{said}\nand the page shows\n" + "\n".join(shown)
        )

    def _placed(self, text: str) -> str:
        for found, instead in self.places.items():
            text = text.replace(found, instead)
        return text


def pattern(shown: Sequence[str]) -> re.Pattern[str]:
    """Of the lines of a page: how many blanks stand between two words is nothing; `…` is anything in its line, a line
    of only that any lines.
    """
    lines = [
        "(?:.*\n)*" if line.strip() == "…" else re.escape(" ".join(line.split())).replace("…", ".*") + "\n"
        for line in shown
    ]
    return re.compile("".join(lines))


def _even(said: str) -> str:
    return "".join(f"{' '.join(line.split())}\n" for line in said.strip().splitlines())


class Reader:
    """Goes through a page, from its first command to the last."""

    def __init__(self, page: Page, shell: Shell) -> None:
        self.page, self.shell = page, shell
        self._read: list[str] = []

    def section(self, heading: str, *, codes: Sequence[int] = (0,)) -> list[str]:
        """Runs what stands below a heading; returns what each command printed."""
        return [said for _, said in self.steps(heading, codes=codes)]

    def steps(self, heading: str, *, codes: Sequence[int] = (0,)) -> Iterator[tuple[str, str]]:
        """(command, what it printed), each as it is done, so that a test looks in between."""
        self._read.append(heading)
        for command in self.page.commands(heading):
            yield command.text, self.shell.run(command, codes=codes)

    def finish(self) -> None:
        """Raises AssertionError where something was left out, or the order was another one."""
        assert self._read == self.page.headings, (
            f"{self.page.name}: read {self._read}, and there is {self.page.headings}"
        )
