"""Which topics each query of a tiered job reads, as files beside their checkpoints. What holds between two moves is a
generation.

    CHECKPOINT/tiers.json         {"format": 1, "generation": 3, "planned_at": seconds since 1970,
                                   "groups": [{"name": "heavy-0", "tier": "heavy", "since": 2, "topics": [...]}, ...]}
    CHECKPOINT/heavy-0.2/         Spark's checkpoint of that group's query; `since` is the generation in which its
                                  topics became what they are
    CHECKPOINT/heavy-0.2.json     what its source is told (`heliograph.spark.scan.topic_groups`)
    CHECKPOINT/heavy-0.2.end      where it stood when it ended for a move; its source writes that
    CHECKPOINT/tiers.lock         locked by the driver that runs the job

Is: names, reading and writing. Isn't: who moves (`tiered_queries`).
Invariants: each topic is in one group: the group `light` reads whatever no other group names, so also what comes later.
tiers.json is replaced as a whole, after all that it names is on the disk: that is the one moment at which topics move.
Whoever dies before it goes on with the old generation, and behind it with the new one.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from heliograph.model.errors import ConfigError, CorruptData, MetadataUnavailable
from heliograph.spark.scan.offsets import Places
from heliograph.spark.scan.topic_groups import TopicSelection, replace_file

FORMAT = 1
LIGHT = "light"
TIERS = "tiers.json"
_OURS = re.compile(r"(?:light|(?:middle|heavy)-\d+)\.\d+(?:\.json|\.end)?")


@dataclass(frozen=True, slots=True)
class GenerationGroup:
    """A group in a generation. topics: whole ones, sorted; of `light` none are named."""

    name: str
    tier: str
    since: int
    topics: tuple[str, ...]

    @property
    def label(self) -> str:
        """A name that no other query of the job ever had, or will have."""
        return f"{self.name}.{self.since}"


@dataclass(frozen=True, slots=True)
class TierGeneration:
    """members: `light`, and the others; planned_at: seconds since 1970."""

    number: int
    planned_at: float
    members: tuple[GenerationGroup, ...]

    def excepted(self) -> list[str]:
        """What `light` does not read."""
        return sorted(topic for member in self.members for topic in member.topics)


class Folder:
    """The files of one job. root: its `checkpoint`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock: IO[str] | None = None

    def lock(self) -> None:
        """Until `unlock`, or the process ends. Raises MetadataUnavailable where another driver runs the job."""
        self._root.mkdir(parents=True, exist_ok=True)
        file = (self._root / "tiers.lock").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise MetadataUnavailable(
                f"another driver runs the job whose checkpoint is {self._root}: stop it, or wait until it is gone"
            ) from error
        self._lock = file

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def checkpoint(self, member: GenerationGroup) -> Path:
        """Returns the folder of a group's checkpoint; generation 0, a job that ran without tiers before, has the root
        itself.
        """
        return self._root / member.label if member.since else self._root

    def told(self, member: GenerationGroup) -> Path | None:
        """None: it reads all topics."""
        return self._root / f"{member.label}.json" if member.since else None

    def ending(self, member: GenerationGroup) -> Path:
        return self._root / f"{member.label}.end"

    def read(self) -> TierGeneration | None:
        """None: the job never ran, with tiers or without. Raises ConfigError of a later version's, CorruptData."""
        path = self._root / TIERS
        try:
            given = json.loads(path.read_text())
        except FileNotFoundError:
            return (
                TierGeneration(0, 0.0, (GenerationGroup(LIGHT, LIGHT, 0, ()),))
                if (self._root / "offsets").is_dir()
                else None
            )
        except ValueError as error:
            raise CorruptData(
                f"{path} cannot be read: {error}; put the job's checkpoint folder aside and start with a new one"
            ) from error
        if not isinstance(given, dict) or given.get("format") != FORMAT:
            raise ConfigError(
                f"{path} is not of format {FORMAT}: run the version that wrote it, or start with another checkpoint "
                "folder"
            )
        try:
            members = tuple(
                GenerationGroup(each["name"], each["tier"], int(each["since"]), tuple(each["topics"]))
                for each in given["groups"]
            )
            return TierGeneration(int(given["generation"]), float(given["planned_at"]), members)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptData(
                f"{path} lacks something: {error}; put the job's checkpoint folder aside and start with a new one"
            ) from error

    def write(self, made: TierGeneration, places: Places | None) -> None:
        """What each new group's source is told, and then that it holds. places: of all topics that move; None: nothing
        was ever read.
        """
        excepted = frozenset(made.excepted())
        for member in made.members:
            path = self.told(member)
            if member.since == made.number and path is not None:
                told = (
                    TopicSelection(None, excepted, places)
                    if member.name == LIGHT
                    else TopicSelection(frozenset(member.topics), frozenset(), places)
                )
                told.write(path)
        groups = [
            {"name": each.name, "tier": each.tier, "since": each.since, "topics": each.topics} for each in made.members
        ]
        replace_file(
            self._root / TIERS,
            {"format": FORMAT, "generation": made.number, "planned_at": made.planned_at, "groups": groups},
        )

    def clear(self, made: TierGeneration, retired: Callable[[str], None]) -> None:
        """Removes what earlier generations, and attempts at later ones, left behind. retired: is told the labels of
        those that never run again.

        It is told before their files go: whoever dies in between tells it again.
        """
        kept = {member.label for member in made.members}
        for path in sorted(self._root.iterdir()):
            label = path.name.removesuffix(".json").removesuffix(".end")
            if _OURS.fullmatch(path.name) is None or label in kept:
                continue
            if path.is_dir():
                retired(label)
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
