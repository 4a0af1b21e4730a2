"""A failover away from a region that is cut off, and what was reported as at risk beside what it had alone.

Is: the move, as `heliograph dr failover` and `rejoin` do it, and bounds for two numbers: what the region that is left
says that the next one lacks, and the tail that its rejoin counts. Isn't: the cut.
Invariants: both are no less than what was confirmed to publishers there and is in that copy alone, and no more than all
that is in that copy alone; the tail, which is counted from both copies, is exactly that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from heliograph.cli.regions.dr_operations import OperationRequest, StepProgress, carried_out
from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError
from region_node.chaos.regions import Regions, eventually, takes
from region_node.chaos.streams import NumberedStream, RegionCopies


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverFound:
    """wrong: what was reported and was not so. alone: the numbers that the region that was left had alone."""

    wrong: list[str]
    compared: int
    alone: frozenset[int]


class FailoverReports:
    """The namespace of one topic that fails over. stream: what is published, in a region that is cut off when `move` is
    called. still_s: no receipt for so long: the client has told of all that it was told.
    """

    def __init__(
        self,
        regions: Regions,
        topic: str,
        stream: NumberedStream,
        arrivals: RegionCopies,
        *,
        still_s: float = 3.0,
    ) -> None:
        self._still_s = still_s
        self._regions, self._topic, self._stream, self._arrivals = regions, topic, stream, arrivals
        self._namespace = "/".join(topic.removeprefix("persistent://").split("/")[:2])

    def move(self, source: str, target: str, heal: Callable[[], object], patience_s: float) -> FailoverFound:
        """The way from `source` to `target` is cut. Fails over to `target`, heals the paths, and has `source` rejoin.
        Raises NotInTime where the region that is cut off goes on confirming; ConfigError where an operation is refused.
        """
        eventually(lambda: not takes(self._regions, source, self._namespace), f"{source} takes no more", patience_s)
        self._until_still()
        told = self._regions.rest(source).get(
            f"/heliograph/v1/topics/{self._topic.removeprefix('persistent://')}/risk"
        )["not_yet_elsewhere"][target]["messages"]
        held = set(self._arrivals.numbers(target).get(self._stream.name, ()))
        alone = frozenset(self._arrivals.numbers(source).get(self._stream.name, ())) - held
        confirmed = len(alone.intersection(self._stream.published.acked))
        self._carried_out("failover", target, target, patience_s)
        heal()
        tail = self._carried_out("rejoin", source, target, patience_s)["tail"]["messages"]
        wrong = []
        if not confirmed <= told <= len(alone):
            wrong.append(
                f"{source} said that {told} messages were at risk, {confirmed} to {len(alone)} were there alone"
            )
        if tail != len(alone):
            wrong.append(f"the rejoin of {source} counted a tail of {tail} messages, {len(alone)} were there alone")
        return FailoverFound(wrong=wrong, compared=2, alone=alone)

    def _until_still(self) -> None:
        acked, since = self._stream.acked, time.monotonic()

        def still() -> bool:
            nonlocal acked, since
            if self._stream.acked != acked:
                acked, since = self._stream.acked, time.monotonic()
            return time.monotonic() - since > self._still_s

        eventually(still, "no receipt comes any more")

    def _carried_out(self, kind: str, to: str, asked: str, patience_s: float) -> dict[str, dict[str, int]]:
        """The operation's report. asked: the region whose broker is asked."""
        wanted = OperationRequest(kind=kind, namespace=self._namespace, to=to, wait_s=patience_s)
        done = carried_out(self._regions.rest(asked), wanted, StepProgress(Output(json=True)))
        if done["state"] != "done":
            raise ConfigError(
                f"the {kind} of {self._namespace} to {to} is {done['state']}: `heliograph dr status {self._namespace}` "
                "says why"
            )
        report: dict[str, dict[str, int]] = done["report"]
        return report
