"""A page of the operating guide as a script: its ```console blocks, by heading, in order.

Is: the form of such a page. In a block a line behind `$ ` is a command (it goes on while a quote is open or the line
ends in a backslash), what stands below it is what it prints. A comment right above a block says what else is to be
known: `<!-- guide: not run: REASON -->`, or `<!-- guide: stays -->` of one whose last command goes on in its terminal.
Isn't: running (`tests.guide.shell`).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
_MARK = re.compile(r"<!-- guide: (.*?) -->")
_NOT_RUN = "not run: "
STAYS = "stays"


@dataclass(frozen=True, slots=True)
class Command:
    """shown: the lines below it; `…` stands for anything, a line of only that for any lines. None: the page shows
    nothing.
    """

    text: str
    shown: tuple[str, ...] = ()
    stays: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """not_run: why nobody runs it here; "": it is run."""

    heading: str
    commands: tuple[Command, ...]
    not_run: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    blocks: tuple[Block, ...]

    @classmethod
    def read(cls, name: str) -> Page:
        """name: of a file of docs/operating, or `operating.md`."""
        return cls.parse(name, path_of(name).read_text())

    @classmethod
    def parse(cls, name: str, text: str) -> Page:
        """Raises ValueError where a block's form is none."""
        blocks: list[Block] = []
        heading = mark = kind = ""
        inside: list[str] | None = None
        for number, line in enumerate(text.splitlines(), 1):
            bare = line.strip()
            if inside is not None:
                if not bare.startswith("```"):
                    inside.append(line.strip())
                    continue
                if kind == "console":
                    blocks.append(Block(heading, *_block(f"{name}, block before line {number}", inside, mark)))
                inside, mark = None, ""
            elif bare.startswith("```"):
                inside, kind = [], bare.strip("`")
            elif bare.startswith("#"):
                heading = bare.lstrip("#").strip()
            elif bare:
                found = _MARK.fullmatch(bare)
                mark = found[1] if found else ""
        if inside is not None:
            raise ValueError(f"{name}: the last block has no end")
        return cls(name, tuple(blocks))

    @property
    def headings(self) -> list[str]:
        """Of the blocks that are run, in order."""
        return list(dict.fromkeys(block.heading for block in self.blocks if not block.not_run))

    def commands(self, heading: str) -> list[Command]:
        found = [
            command
            for block in self.blocks
            if block.heading == heading and not block.not_run
            for command in block.commands
        ]
        assert found, f"{self.name} has no commands below {heading!r}; it has some below {self.headings}"
        return found


def pages() -> dict[str, Path]:
    """Name -> file, of every page of the guide."""
    return {
        "operating.md": DOCS / "operating.md",
        **{path.name: path for path in sorted((DOCS / "operating").glob("*.md"))},
    }


def path_of(name: str) -> Path:
    return pages()[name]


def _block(where: str, lines: list[str], mark: str) -> tuple[tuple[Command, ...], str]:
    commands: list[tuple[str, list[str]]] = []
    for line in lines:
        if commands and not _whole(commands[-1][0]):
            commands[-1] = f"{commands[-1][0]}\n{line}", []
        elif line.startswith("$ "):
            commands.append((line[2:], []))
        elif commands:
            commands[-1][1].append(line)
        else:
            raise ValueError(f"{where}: it begins with no command (`$ `)")
    if not commands or not _whole(commands[-1][0]):
        raise ValueError(f"{where}: it has no command, or the last one has no end")
    if mark and mark != STAYS and not (mark.startswith(_NOT_RUN) and len(mark.split()) > 4):
        raise ValueError(f"{where}: the comment {mark!r} is neither {STAYS!r} nor {_NOT_RUN!r} with a reason")
    last = len(commands) - 1
    made = tuple(Command(text, tuple(shown), mark == STAYS and at == last) for at, (text, shown) in enumerate(commands))
    return made, mark.removeprefix(_NOT_RUN) if mark.startswith(_NOT_RUN) else ""


def _whole(text: str) -> bool:
    if text.endswith("\\"):
        return False
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True
