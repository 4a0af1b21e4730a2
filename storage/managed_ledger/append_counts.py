"""Appends: how long they took, and how large entries were, by namespace; and what was read.

Is: what one broker counts of all its topics' appends: the clients', Kafka's, and what other regions sent; and of their
reads, from wherever the entries came. Isn't: a metric's name (`storage_metrics`).
Invariants: counted by run, with no reading of a clock of its own; the buckets of a histogram add up to its count;
nothing here grows with the number of topics, and only so many namespaces are counted apart.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from math import ceil, log

from heliograph.runtime.recent_latencies import Recent

LATENCIES_S = (0.0005, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0)
"""Upper bounds, each inclusive; what took longer is in one bucket more."""


def _between(low: float, high: float) -> list[float]:
    """Bounds above low through high, of which each is at most a fifth above the one before."""
    parts = ceil(log(high / low, 1.2))
    return [*(low * (high / low) ** (part / parts) for part in range(1, parts)), high]


FINE_S = (LATENCIES_S[0], *(at for low, high in pairwise((*LATENCIES_S, 10.0)) for at in _between(low, high)))
"""The same, so close to each other that a quantile can be read off them."""
_COARSE = (0, *(FINE_S.index(bound) + 1 for bound in LATENCIES_S), len(FINE_S) + 1)
SIZES = (128, 512, 1024, 2048, 4096, 16384, 102_400, 1_232_896)
"""Upper bounds of an entry's size in bytes, each inclusive; what was larger is in one bucket more."""
OTHERS = "others"
"""Counts the namespaces beyond the first `NAMESPACES_MAX`; no namespace has such a name."""
NAMESPACES_MAX = 1000
_RATE_S = 1.0
_Rates = tuple[float, float, float, float, float]


class AppendCounts:
    """Counts the appends and reads of one namespace since the broker's start: in entries, unless a name says bytes."""

    __slots__ = (
        "_all",
        "_counted",
        "_rated_at",
        "_rates",
        "copied_bytes",
        "errors",
        "read_bytes",
        "read_entries",
        "read_errors",
        "reads",
        "size_bytes",
        "sizes",
        "sum_s",
        "switches",
        "taken",
    )

    def __init__(self, every: Recent) -> None:
        """every: how long the newest appends of all namespaces took, in seconds."""
        self.errors = self.size_bytes = self.copied_bytes = 0
        self.reads = self.read_entries = self.read_bytes = self.read_errors = 0
        self.sum_s = 0.0
        self.taken = [0] * (len(FINE_S) + 1)
        """Entries, by how long they took: through each bound of FINE_S, and above the last."""
        self.sizes = [0] * (len(SIZES) + 1)
        self.switches = [0] * (len(LATENCIES_S) + 1)
        """Next ledgers, by how long it took until there was one."""
        self._all = every
        self._rated_at = 0.0
        self._counted = (0, 0, 0, 0, 0)
        self._rates: _Rates = (0.0, 0.0, 0.0, 0.0, 0.0)

    @property
    def entries(self) -> int:
        return sum(self.taken)

    @property
    def latencies(self) -> list[int]:
        """The same as `taken` by the bounds of LATENCIES_S."""
        return [sum(self.taken[low:high]) for low, high in pairwise(_COARSE)]

    def confirmed(self, entries: int, size_bytes: int, copies: int, took_s: float) -> None:
        """A run is durable. Each of its entries counts with the run's latency, and with the mean of its sizes."""
        self.size_bytes += size_bytes
        self.copied_bytes += size_bytes * copies
        self.sum_s += took_s * entries
        self.taken[bisect_left(FINE_S, took_s)] += entries
        self.sizes[bisect_left(SIZES, size_bytes / entries)] += entries
        self._all.add(took_s)

    def switched(self, took_s: float) -> None:
        self.switches[bisect_left(LATENCIES_S, took_s)] += 1

    def read(self, entries: int, size_bytes: int) -> None:
        """One read has ended well."""
        self.reads += 1
        self.read_entries += entries
        self.read_bytes += size_bytes

    def rates(self, now: float) -> _Rates:
        """Entries, bytes, and bytes of all copies that were appended, entries and bytes that were read, a second, since
        about the last call.
        """
        if now - self._rated_at >= _RATE_S:
            counted = self.entries, self.size_bytes, self.copied_bytes, self.read_entries, self.read_bytes
            elapsed = now - self._rated_at
            entries, size, copied, read, read_size = (
                (b - a) / elapsed for a, b in zip(self._counted, counted, strict=True)
            )
            self._rates, self._rated_at, self._counted = (entries, size, copied, read, read_size), now, counted
        return self._rates


class Appends:
    """One a broker. `newest`: seconds from an append until its run was durable."""

    def __init__(self) -> None:
        self.newest = Recent()
        self.namespaces: dict[str, AppendCounts] = {}

    def of(self, topic: str) -> AppendCounts:
        """Returns the counts of the namespace of a topic, given by its full name; another name counts with OTHERS."""
        parts = topic.split("/", 4)
        namespace = "/".join(parts[2:4]) if len(parts) == 5 else OTHERS
        found = self.namespaces.get(namespace)
        if found is None:
            if len(self.namespaces) >= NAMESPACES_MAX:
                namespace = OTHERS
            found = self.namespaces.setdefault(namespace, AppendCounts(self.newest))
        return found

    def forget(self, namespace: str) -> None:
        """It is no longer there: its place is another's. Topics of it that are open count for nobody."""
        self.namespaces.pop(namespace, None)
