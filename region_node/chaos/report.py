"""What a run of a scenario did and found: as values, as what JSON has of them, and as lines for a terminal.

Is: facts and their form. Isn't: a verdict of its own: `kept` is that the judge found nothing. The page for people is
`page`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from region_node.chaos.judge import BrokenPromise


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """A fault that is over. line: of its step. began_s, ended_s: since the run began. whole_s: seconds from its end
    until every subscription had all that was acknowledged; None: other faults held, and nobody waited for that.
    """

    fault: str
    where: str
    line: int
    began_s: float
    ended_s: float
    whole_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosReport:
    """A run. began: seconds since 1970. published: region -> `sent`, `acknowledged`, `refused`. read: region ->
    `messages`, and `again`, redeliveries. compared: by kind of report, numbers that were held against the truth.
    not_compared: why some were not. series: as `Timeline.series` gives them.
    """

    scenario: str
    seed: int
    run: str
    version: str
    client: str
    topic: str
    regions: list[str]
    began: float
    took_s: float
    faults: list[FaultRecord]
    published: Mapping[str, Mapping[str, int]]
    read: Mapping[str, Mapping[str, int]]
    compared: Mapping[str, int]
    broken: list[BrokenPromise]
    not_compared: list[str] = field(default_factory=list)
    series: Mapping[str, Mapping[str, list[list[float]]]] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        return not self.broken

    def as_json(self) -> dict[str, Any]:
        return {"kept": self.kept, **asdict(self)}


def lines(run: ChaosReport) -> str:
    """What a terminal shows in the end."""
    sent = sum(row["sent"] for row in run.published.values())
    acked = sum(row["acknowledged"] for row in run.published.values())
    again = sum(row["again"] for row in run.read.values())
    waited = [one for one in run.faults if one.whole_s is not None]
    found = [
        f"{len(run.faults)} faults in {run.took_s:.0f} s; {sent} messages sent, {acked} acknowledged, {again} "
        "redelivered"
    ]
    if waited:
        slowest = max(waited, key=lambda one: one.whole_s or 0.0)
        found.append(f"slowest recovery {slowest.whole_s:.1f} s, after {slowest.fault} at {slowest.where}")
    said = ", ".join(f"{name} {count}" for name, count in sorted(run.compared.items())) or "none"
    found.append(f"reports compared with the truth: {said}")
    found += [f"not compared: {why}" for why in run.not_compared]
    found += [f"BROKEN ({one.promise}): {one}" for one in run.broken]
    found.append("every promise was kept" if run.kept else "promises were broken: exit code 1")
    return "\n".join(found)
