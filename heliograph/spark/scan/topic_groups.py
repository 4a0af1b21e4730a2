"""What one of several queries over the same topics is told: which of them it reads, and from where on. And what it
tells: where it ended.

    group_file     {"format": 1, "only": [topics] or null, "except": [topics],
                    "positions": places as of `offsets`, or null}
    ending_file    places

Is: the two files, which the source's options of these names point to, on the driver. Isn't: who makes groups
(`heliograph.spark.jobs.tier_generations`).
Topics are named without their partitions, places with them. positions null: the query begins as its other options say;
else at these places, and what is not among them from its beginning. A file is replaced whole, and synced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError, CorruptData
from heliograph.model.topic_names import TopicName
from heliograph.spark.scan.offsets import Places, TopicPlace, decode, encode

FORMAT = 1


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """only: the topics, or None: all but `excepted`."""

    only: frozenset[str] | None
    excepted: frozenset[str]
    places: Mapping[str, TopicPlace] | None

    def reads(self, topic: str) -> bool:
        whole = str(TopicName.parse(topic).partitioned)
        return whole not in self.excepted if self.only is None else whole in self.only

    def of(self, topics: Sequence[str]) -> list[str]:
        """Those of them that it reads, in their order."""
        return [topic for topic in topics if self.reads(topic)]

    def write(self, path: Path) -> None:
        """Replaces the file. It gets only those of `places` whose topics the group reads."""
        places = (
            None
            if self.places is None
            else encode({topic: place for topic, place in self.places.items() if self.reads(topic)})
        )
        only = None if self.only is None else sorted(self.only)
        replace_file(path, {"format": FORMAT, "only": only, "except": sorted(self.excepted), "positions": places})


def read_told(path: Path) -> TopicSelection:
    """Reads what `TopicSelection.write` wrote. Raises ConfigError."""
    try:
        given = json.loads(path.read_text())
        if given["format"] != FORMAT:
            raise ConfigError(f"{path} is not of format {FORMAT}: run the version that wrote it")
        only = None if given["only"] is None else frozenset(given["only"])
        return TopicSelection(
            only, frozenset(given["except"]), None if given["positions"] is None else decode(given["positions"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}, which says what a group of topics is, cannot be read: {error}") from error


def read_places(path: Path) -> Places:
    """Raises CorruptData, also where it is not there."""
    try:
        return decode(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise CorruptData(f"{path}, where a query says how far it came, cannot be read: {error}") from error


def replace_file(path: Path, value: Any) -> None:
    """With a value as JSON, whole or not at all, also after a power failure."""
    new = path.with_name(f".{path.name}.new")
    with new.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    held = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(held)
    finally:
        os.close(held)
