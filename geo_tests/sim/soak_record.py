"""Soak record: which seeds ran on which commit, and what they were, so that a soak goes on where it was ended.

Is: one file a commit and kind of world, `.soak/COMMIT.KIND.jsonl` in the checkout, a line a seed. Isn't: a run.
Invariants: only what passed on this very commit, with nothing changed in the working tree, is not run again; a line
that was cut off in the middle counts for nothing.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RARE = 0.05
"""The part of worlds in which each kind of fault has to happen."""
ENOUGH = 500
"""So many worlds say how often a kind happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One seed. error: empty where it passed; kinds: of faults, as often as they happened."""

    seed: int
    error: str = ""
    messages: int = 0
    sort: str = ""
    """Of world: those of one sort draw from the same kinds of faults."""
    kinds: dict[str, int] = field(default_factory=dict)
    reports: dict[str, int] = field(default_factory=dict)
    """How often something that the product says of itself was compared with the truth, by its kind."""
    cpu_s: float = 0.0


class SoakRecord:
    """`path` None: the tree differs from its commit, so nothing is remembered."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.passed: dict[int, Ran] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                if (ran := _read(line)) is not None:
                    self._take(ran)

    def add(self, ran: Ran) -> None:
        """Notes it at once, so that an end by a signal loses nothing."""
        self._take(ran)
        if self._path is not None:
            self._path.parent.mkdir(exist_ok=True)
            with self._path.open("a") as file:
                file.write("\n" + json.dumps(asdict(ran)))  # behind a line that may be cut off

    def _take(self, ran: Ran) -> None:
        if ran.error:
            self.passed.pop(ran.seed, None)
        else:
            self.passed[ran.seed] = ran


def _read(line: str) -> Ran | None:
    try:
        fields: dict[str, Any] = json.loads(line)
        return Ran(**fields)
    except (ValueError, TypeError):
        return None


def record_of(kind: str, root: Path) -> SoakRecord:
    """The record of the commit that is checked out in `root`; of none where the working tree differs from it."""
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True)
    if changed.returncode or commit.returncode or changed.stdout.strip():
        return SoakRecord(None)
    return SoakRecord(root / ".soak" / f"{commit.stdout.strip()}.{kind}.jsonl")


def rare_kinds(ran: Iterable[Ran], known: Mapping[str, Collection[str]]) -> dict[str, float]:
    """Kind of fault -> the part of worlds in which it happened, of those that draw from it, where that is less than
    `RARE`; none where too few worlds ran. known: sort of world -> all kinds that it draws from.
    """
    worlds, within = Counter[str](), Counter[str]()
    for one in ran:
        worlds.update(known.get(one.sort, ()))
        within.update(kind for kind in known.get(one.sort, ()) if kind in one.kinds)
    return {
        kind: within[kind] / worlds[kind]
        for kind in sorted(worlds)
        if worlds[kind] >= ENOUGH and within[kind] < RARE * worlds[kind]
    }
