"""What a cut link says is at risk, beside what is: messages that were published in its source and are not in its
target, and how old the oldest is.

Is: bounds for each answer, from what publishers had been told before it was asked for and had sent when it came, and
from what is read in the target in the end. Isn't: the cut. Invariants: before it everything had arrived, and the source
knew that. So a link may say no less than was confirmed to publishers and is not in its target, and no more than was
published since; with nothing in flight these are the same number, unless other regions passed something on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from heliograph.model.errors import ConfigError
from region_node.chaos.regions import Regions
from region_node.chaos.streams import NumberedStream, RegionCopies

Link = tuple[str, str]
"""Source and target."""
EXACT_S = 1.0


@dataclass(frozen=True)
class RiskSample:
    """asked, answered: monotonic seconds. acked: before it was asked for; sent: when it was answered."""

    link: Link
    asked: float
    answered: float
    acked: int
    sent: int
    messages: int
    age_s: float


class RiskReports:
    """One cut. Made before it, when everything has arrived everywhere."""

    def __init__(
        self, regions: Regions, topic: str, streams: Mapping[str, NumberedStream], arrivals: RegionCopies
    ) -> None:
        self.regions, self.topic, self.streams, self.arrivals = regions, topic, streams, arrivals
        self.before = {region: stream.sent for region, stream in streams.items()}
        self.links: list[Link] = []
        self.still = ""
        self.samples: list[RiskSample] = []
        self.began = time.monotonic()
        self.confirmed: dict[str, float] = {}
        """Source -> when something that it published since was seen to be confirmed."""

    def begin(self, links: Iterable[Link], still: str = "") -> None:
        """still: a region that stands still: nothing arrives there, and it cannot be read until it goes on."""
        self.links, self.still = list(links), still

    def sample(self) -> None:
        """What each source says now. A broker that does not answer at this moment says nothing."""
        for source in sorted({source for source, _ in self.links}):
            stream, asked = self.streams[source], time.monotonic()
            acked = stream.acked
            if acked > self.before[source]:
                self.confirmed.setdefault(source, asked)
            try:
                told = self.regions.rest(source).get(
                    f"/heliograph/v1/topics/{self.topic.removeprefix('persistent://')}/risk"
                )["not_yet_elsewhere"]
            except ConfigError:
                continue
            for link in self.links:
                if link[0] == source and (row := told.get(link[1])) is not None:
                    self.samples.append(
                        RiskSample(link, asked, time.monotonic(), acked, stream.sent, row["messages"], row["age_s"])
                    )

    def verdict(self) -> tuple[list[str], int]:
        """(what was said and was not so, how many numbers were compared). Waits until all that was sent is confirmed;
        the cut must still hold.
        """
        for source in {source for source, _ in self.links}:
            self.streams[source].finish()
        self.sample()
        arrived = {target: self.arrivals.of(target) for target in {target for _, target in self.links} - {self.still}}
        wrong = []
        for one in self.samples:
            source, target = one.link
            there = self.before[source] if target == self.still else arrived[target][self.streams[source].name]
            least, most = max(0, one.acked - there), one.sent - self.before[source]
            if not least <= one.messages <= most:
                wrong.append(f"{source}-{target}: {one.messages} messages at risk are reported, {least} to {most} are")
            oldest = one.answered - self.began + EXACT_S
            youngest = (
                one.asked - self.confirmed.get(source, one.asked) - EXACT_S if there == self.before[source] else 0.0
            )
            if one.messages and not youngest <= one.age_s <= oldest:
                wrong.append(
                    f"{source}-{target}: the oldest message at risk is reported {one.age_s:.1f} s old, it is "
                    f"{youngest:.1f} to {oldest:.1f}"
                )
        if not self.samples:
            wrong.append("no region said what is at risk while it was cut")
        return wrong, 2 * len(self.samples)
