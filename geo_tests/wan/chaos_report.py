"""What a chaos run did and found: as values, as a JSON file, and as a page for people.

Is: `Event`, a fault that has ended; `Summary`, the run. Isn't: a verdict.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Event:
    """A fault that is over. took_s: seconds until every link had caught up."""

    kind: str
    where: str
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run. compared: by kind of report, numbers that were held against the truth. wrong: empty where all was well.
    began: seconds since 1970.
    """

    seed: int
    regions: list[str]
    bookies: int
    began: float
    took_s: float
    events: list[Event]
    messages: int
    compared: dict[str, int]
    wrong: list[str]

    @property
    def kinds(self) -> Counter[str]:
        return Counter(event.kind for event in self.events)


def lines(run: Summary) -> str:
    """What a terminal shows in the end."""
    found = [f"{len(run.events)} faults of {len(run.kinds)} kinds, {run.messages} messages"]
    if run.events:
        slowest = max(run.events, key=lambda event: event.took_s)
        found[0] += f", slowest recovery {slowest.took_s:.1f} s after {slowest.kind} at {slowest.where}"
    found.append("faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(run.kinds.items())))
    compared = ", ".join(f"{name} {count}" for name, count in sorted(run.compared.items())) or "none"
    found.append(f"numbers that were compared with the truth: {compared}")
    return "\n".join([*found, *(f"WRONG: {what}" for what in run.wrong)])


def write(run: Summary, path: Path) -> None:
    """PATH.json and PATH.md. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    of = {"commit": commit(), "load": os.getloadavg()[2], "cores": os.cpu_count(), "kinds": dict(run.kinds)}
    path.with_suffix(".json").write_text(json.dumps({**asdict(run), **of}, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(run, str(of["commit"])))


def page(run: Summary, of: str) -> str:
    """Markdown. of: the commit."""
    day = time.strftime("%Y-%m-%d", time.gmtime(run.began))
    slowest = {kind: max(event.took_s for event in run.events if event.kind == kind) for kind in run.kinds}
    return "\n".join(
        [
            f"# Chaos, {day}",
            "",
            f"Commit {of}; regions {', '.join(run.regions)}, each of {run.bookies} bookies; seed {run.seed}; "
            f"{run.took_s / 60:.0f} minutes, {run.messages} messages, {len(run.events)} faults of "
            f"{len(run.kinds)} kinds.",
            "",
            "Nothing was wrong." if not run.wrong else "Wrong:",
            *(f"- {what}" for what in run.wrong),
            "",
            "| fault | times | slowest recovery, s |",
            "|---|---|---|",
            *(f"| {kind} | {count} | {slowest[kind]:.1f} |" for kind, count in sorted(run.kinds.items())),
            "",
            "| what was said | numbers compared with the truth |",
            "|---|---|",
            *(f"| {name} | {count} |" for name, count in sorted(run.compared.items())),
            "",
        ]
    )


def commit() -> str:
    """The checkout's, with `+` where files differ from it; "unknown" outside of one."""
    try:
        found = [
            subprocess.run(
                ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
            ).stdout.strip()
            for arguments in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain"))
        ]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found[0] + ("+" if found[1] else "")
