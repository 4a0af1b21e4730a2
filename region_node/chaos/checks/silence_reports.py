"""What is said of a region that is not heard any more, beside what is true.

Is: of each way on which nothing arrives (its source stands still, or packets vanish while connections stay open), what
its target says of the source, and its source of the target: whether they are connected, since when nothing was heard,
how old what is missing may be. Isn't: the silence; what the source counts as at risk (`risk`).
Invariants: a silence is never told shorter than it is, and from 5 s on nobody says *connected*; what a target says that
the oldest message which it lacks may be old is no less than that is. Told later than it is so is no lie by SLACK_S:
heartbeats come each second, and silence counts from 2 s on (decision 207). Told longer is none either.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from heliograph.model.errors import ConfigError
from region_node.chaos.checks.risk_reports import Link
from region_node.chaos.regions import Regions
from region_node.chaos.streams import NumberedStream, RegionCopies
from replicator.health.incoming_stats import LOST_S

SLACK_S = 2.5
"""A heartbeat, what was on its way, and the first second of a silence, which nobody tells from none."""


@dataclass(frozen=True)
class SilenceSample:
    """asked: monotonic seconds; row: of the way, as `here`, its target, or its source says it."""

    link: Link
    here: bool
    asked: float
    row: dict[str, Any]


class SilenceReports:
    """One silence, from when this object is made."""

    def __init__(
        self,
        regions: Regions,
        topic: str,
        streams: Mapping[str, NumberedStream],
        links: Iterable[Link],
        arrivals: RegionCopies,
    ) -> None:
        self.regions, self.streams, self.links, self.arrivals = regions, streams, list(links), arrivals
        self.topic = topic
        self.began = time.monotonic()
        self.said: list[SilenceSample] = []
        self.acked: dict[str, list[tuple[float, int]]] = {source: [] for source, _ in self.links}
        """Source -> how much its publisher had been told to be stored, and when that was seen."""

    def sample(self, still: str = "") -> None:
        """What each end says now. still: a region that cannot be asked."""
        for source, seen in self.acked.items():
            seen.append((time.monotonic(), self.streams[source].acked))
        for region in sorted({region for link in self.links for region in link} - {still}):
            asked = time.monotonic()
            try:
                told = self.regions.rest(region).get(
                    f"/heliograph/v1/topics/{self.topic.removeprefix('persistent://')}/risk"
                )
            except ConfigError:
                continue
            for link in self.links:
                for here, key, other in ((True, "not_yet_here", link[0]), (False, "not_yet_elsewhere", link[1])):
                    if region == link[1 if here else 0] and (row := told[key].get(other)) is not None:
                        self.said.append(SilenceSample(link, here, asked, row))

    def verdict(self, still: str = "") -> tuple[list[str], int]:
        """(what was said and was not so, how many numbers were compared). The silence must still hold."""
        arrived = {
            link: self.arrivals.of(link[1])[self.streams[link[0]].name] for link in self.links if link[1] != still
        }
        wrong, compared = [], 0
        for one in self.said:
            name = f"{one.link[0]}-{one.link[1]}: {one.link[1] if one.here else one.link[0]} says that"
            for_s = one.asked - self.began - SLACK_S
            compared += 2
            if for_s > LOST_S and one.row["connected"]:
                wrong.append(f"{name} it is connected, nothing was heard for {for_s:.1f} s")
            silent_s = one.row["silent_s"] or 0.0
            if one.here and silent_s < for_s:
                wrong.append(f"{name} nothing was heard for {silent_s:.1f} s, it is at least {for_s:.1f} s")
            if not one.here:
                continue
            missing_s = one.asked - self._stored(one.link[0], arrived[one.link]) - SLACK_S
            compared += 1
            if one.row["age_s_max"] < missing_s:
                wrong.append(
                    f"{name} what is missing may be {one.row['age_s_max']:.1f} s old, it is {missing_s:.1f} s at least"
                )
        if not self.said:
            wrong.append("no region said anything of a silence")
        return wrong, compared

    def _stored(self, source: str, arrived: int) -> float:
        """When the first message of the source that did not arrive was seen to be stored there; infinite: none was."""
        return next((at for at, acked in self.acked[source] if acked > arrived), float("inf"))
