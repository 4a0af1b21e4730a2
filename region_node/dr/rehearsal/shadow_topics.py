"""ShadowTopics: which topics a drill's shadow has: as many as the namespace, cut into partitions as those are.

Is: a core: counting, names, and which of them are made next. Isn't: making them (`region_node.faces.admin.dr.drills`).
Invariants: the same drill names the same topics in the same order, whoever goes on with it; a shadow has at least one
topic, and at most as many as the bound says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from heliograph.model.topic_names import TopicName


@dataclass(frozen=True, slots=True)
class ShadowTopics:
    """of: topics of the namespace, each partition counted. parted: (partitions, how many topics have so many), the most
    first; (0, n): n topics without.
    """

    of: int
    parted: tuple[tuple[int, int], ...]

    @classmethod
    def like(cls, names: Iterable[str], most: int) -> ShadowTopics:
        """names: full ones of the namespace's topics, partitions among them; of more than `most` the first by name."""
        known = sorted(set(names))
        each = Counter[str]()
        plain = 0
        for name in map(TopicName.parse, known[:most]):
            if name.partition < 0:
                plain += 1
            else:
                each[str(name.partitioned)] += 1
        parted = Counter(each.values())
        if plain or not known:
            parted[0] = max(1, plain)
        return cls(len(known), tuple(sorted(parted.items(), reverse=True)))

    @classmethod
    def told(cls, given: Mapping[str, Any]) -> ShadowTopics:
        """As it stands in the operation."""
        return cls(int(given["of"]), tuple((int(partitions), int(count)) for partitions, count in given["parted"]))

    def telling(self) -> dict[str, Any]:
        return {"of": self.of, "parted": [list(row) for row in self.parted]}

    @property
    def count(self) -> int:
        return sum(max(1, partitions) * count for partitions, count in self.parted)

    def text(self) -> str:
        """How many of how many."""
        return f"{min(self.count, self.of)} of {self.of} topics"

    def names(self, shadow: str) -> list[str]:
        """Full names, each partition one."""
        return [
            f"{base}-partition-{index}" if partitions else base
            for base, partitions in self._bases(shadow)
            for index in range(max(1, partitions))
        ]

    def partitions(self, shadow: str, names: Sequence[str]) -> dict[str, int]:
        """Returns whose partitions are among `names`, and how many it has."""
        bases = {str(name.partitioned) for name in map(TopicName.parse, names) if name.partition >= 0}
        return {base: partitions for base, partitions in self._bases(shadow) if base in bases}

    def some(self, shadow: str, most: int) -> list[str]:
        """At most so many of the names, as far from each other as they can be."""
        names = self.names(shadow)
        return (
            list(islice((names[index * len(names) // most] for index in range(most)), most))
            if len(names) > most
            else names
        )

    def _bases(self, shadow: str) -> list[tuple[str, int]]:
        return [
            (f"persistent://{shadow}/of-{partitions}-{index}", partitions)
            for partitions, count in self.parted
            for index in range(count)
        ]
