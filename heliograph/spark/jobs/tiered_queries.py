"""The queries of a tiered job while it runs: one a group, and topics that move from one to another with where they
stand.

Is: what a driver looks at: starts queries one after another, asks for loads at an interval, ends those whose topics
change, and begins what takes their place.
Isn't: Spark (queries come from a function), which topic belongs where (`tiers`), or files (`tier_generations`).
How a move goes, and what holds after a death behind each step:
    1. the queries of all groups that lose or gain a topic are stopped: the old generation
    2. each is run once more, to the end of the micro-batch that it was in, and its source writes where it stands: the
       old one; that is written anew
    3. what the new groups' sources are told is written, and then tiers.json is replaced: from here on the new one
    4. the new groups' queries start, each with a checkpoint of its own, at the places that they were told: the new one
    5. what nobody needs any more is removed
Invariants: two queries never read a topic at once; a topic's next query begins where its last one has committed. A
group whose topics stay is not touched.
Source: docs/spark.md, "Traffic tiers".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from heliograph.model.errors import HeliographError, MetadataUnavailable
from heliograph.spark.job_files.running_queries import INITIAL_S, initializing
from heliograph.spark.jobs.tier_generations import LIGHT, Folder, GenerationGroup, TierGeneration
from heliograph.spark.jobs.tiers import TierLimits, TopicGroup, replanned
from heliograph.spark.scan.offsets import Places
from heliograph.spark.scan.topic_groups import read_places

_AGAIN_S = 60.0


class Start(Protocol):
    """Starts a group's query on a checkpoint. ending: it finishes the micro-batch that it was in, writes there where it
    stands, and ends.
    """

    def __call__(self, member: GenerationGroup, checkpoint: Path, told: Path | None, ending: Path | None) -> Any: ...


class Tiered:
    """`look` is to be called now and then; what it raises is the job's failure, and everything may be started anew from
    the files.
    """

    def __init__(
        self,
        folder: Folder,
        start: Start,
        loads: Callable[[], Mapping[str, float]],
        limits: TierLimits,
        rebalance_s: float,
        *,
        now: Callable[[], float],
        say: Callable[..., None],
        retired: Callable[[str], None] = lambda label: None,
    ) -> None:
        """loads: bytes a second of every topic of the job, without partitions; now: seconds since 1970; retired: is
        told labels that are over, maybe twice.
        """
        self._folder, self._begin, self._loads, self._limits, self._every_s = folder, start, loads, limits, rebalance_s
        self._now, self._say, self._retired = now, say, retired
        folder.lock()
        try:
            self._generation = folder.read()
            if self._generation is not None:
                folder.clear(self._generation, retired)
        except BaseException:
            folder.unlock()
            raise
        self._due = 0.0 if self._generation is None else self._generation.planned_at + rebalance_s
        self._running: dict[str, Any] = {}
        """Holds the queries that run, by their labels."""
        self._wanted: list[TopicGroup] | None = None
        """While topics are on their way: the groups that will be."""
        self._ending: dict[GenerationGroup, Any] = {}
        """Those that finish for it."""
        self._started_at = -INITIAL_S

    @property
    def streams(self) -> list[Any]:
        return [*self._running.values(), *self._ending.values()]

    @property
    def busy(self) -> bool:
        """Whether there is something to start, or on its way, though no query may be running at this moment."""
        return (
            self._generation is None or self._wanted is not None or len(self._running) < len(self._generation.members)
        )

    def close(self) -> None:
        """When all streams are stopped: another driver may run the job."""
        self._folder.unlock()

    def look(self) -> None:
        """Raises HeliographError, ConfigError, and whatever Spark does."""
        if self._wanted is None and self._now() >= self._due:
            self._measure()
        if self._wanted is not None:
            self._go_on(self._wanted)
        elif self._generation is not None and self._may_start():
            member = next((each for each in self._generation.members if each.label not in self._running), None)
            if member is not None:
                self._running[member.label] = self._start(member, None)

    def _may_start(self) -> bool:
        return self._now() - self._started_at >= INITIAL_S or not initializing(self.streams)

    def _start(self, member: GenerationGroup, ending: Path | None) -> Any:
        self._started_at = self._now()
        return self._begin(member, self._folder.checkpoint(member), self._folder.told(member), ending)

    def _measure(self) -> None:
        known = self._generation
        try:
            loads = self._loads()
        except HeliographError as error:
            if known is None:
                raise  # there is nothing to go on with
            self._due = self._now() + _AGAIN_S
            self._say("tiers.unmeasured", error=str(error), again_in_s=_AGAIN_S)
            return
        self._due = self._now() + self._every_s
        now = (
            []
            if known is None
            else [TopicGroup(each.name, each.tier, each.topics, 0.0) for each in known.members if each.name != LIGHT]
        )
        wanted = [group for group in replanned(now, loads, self._limits) if group.tier != LIGHT]
        if known is None:
            self._hold(_next(None, wanted, self._now()), None)
            return
        made = _next(known, wanted, self._now())
        if all(each.since != made.number for each in made.members):
            return
        self._wanted = wanted
        kept = {each.label for each in made.members}
        for member in known.members:
            if member.label in kept:
                continue
            if (stream := self._running.pop(member.label, None)) is not None:
                stream.stop()
            self._folder.ending(member).unlink(missing_ok=True)
        self._say("tiers.moving", groups=[each.label for each in known.members if each.label not in kept])

    def _go_on(self, wanted: list[TopicGroup]) -> None:
        """Ends one query after another, and when all have, lets the new generation hold."""
        known = self._generation
        assert known is not None
        made = _next(known, wanted, self._now())
        going = [each for each in known.members if each not in made.members]
        for member in going:
            if member not in self._ending:
                if self._may_start():
                    self._ending[member] = self._start(member, self._folder.ending(member))
                return
        if any(stream.isActive for stream in self._ending.values()):
            return
        for member, stream in self._ending.items():
            if (error := stream.exception()) is not None:
                raise error
            if not self._folder.ending(member).is_file():
                raise MetadataUnavailable(
                    f"the query of {member.label} ended without saying where it stands; it is asked again"
                )
        places: Places = {}
        for member in going:
            places |= read_places(self._folder.ending(member))
        self._hold(made, places)
        self._wanted, self._ending = None, {}

    def _hold(self, made: TierGeneration, places: Places | None) -> None:
        self._folder.write(made, places)
        self._generation = made
        self._folder.clear(made, self._retired)
        self._say(
            "tiers.hold",
            generation=made.number,
            groups={each.label: len(each.topics) for each in made.members if each.name != LIGHT},
        )


def _next(known: TierGeneration | None, wanted: list[TopicGroup], now: float) -> TierGeneration:
    """The generation that has those groups, and `light`; what stays as it is keeps its `since`."""
    number = 1 if known is None else known.number + 1
    before = {} if known is None else {(each.name, each.topics): each for each in known.members}
    members = [
        before.get((each.name, each.topics)) or GenerationGroup(each.name, each.tier, number, each.topics)
        for each in wanted
    ]
    excepted = sorted(topic for each in wanted for topic in each.topics)
    light = None if known is None or known.excepted() != excepted else before.get((LIGHT, ()))
    return TierGeneration(number, now, (*members, light or GenerationGroup(LIGHT, LIGHT, number, ())))
