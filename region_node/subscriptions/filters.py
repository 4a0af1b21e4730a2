"""Entry filters: code of an operator's own that says which messages a subscription gets. The plug-in point, and what a
subscription keeps of it.

Is: the interface of a filter, several of them in a row, counters. Isn't: loading
(`region_node.subscriptions.filter_plugins`), or what becomes of an entry (the dispatcher: what is rejected counts as
acknowledged; what is rescheduled comes later).
Invariants: a filter sees a whole run at once, and an entry's metadata is decoded only where a filter asks for it; what
the first filter has not accepted the others are not asked about. A filter that raises, or answers nonsense, reschedules
the run: nothing is lost, and nothing gets past it.

    class OnlyEurope(EntryFilter):
        def decide(self, entries: Entries) -> list[int] | None:
            return [ACCEPT if entries.property(i, "region") == "eu" else REJECT for i in range(len(entries))]

It runs on the broker's loop: no waiting, no reading, microseconds an entry.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from heliograph.model.errors import CorruptData
from heliograph.model.positions import Position
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.pulsar.pulsar_pb2 import MessageMetadata
from heliograph.wire.run import Run

log = logging.getLogger("region_node.topics")

ACCEPT, REJECT, RESCHEDULE = 0, 1, 2
RESCHEDULE_MS = 1000
"""How long an entry waits that a filter rescheduled: Pulsar's dispatcherEntryFilterRescheduledMessageDelay."""


class Entries:
    """A run on its way to a subscription. `len()` is its entries; an entry may be a batch of messages."""

    __slots__ = ("_first", "_ledger", "_metadata", "_run", "subscription", "subscription_properties", "topic")

    def __init__(
        self, topic: str, subscription: str, properties: Mapping[str, str], ledger: int, first: int, run: Run
    ) -> None:
        self.topic, self.subscription, self.subscription_properties = topic, subscription, properties
        self._ledger, self._first, self._run = ledger, first, run
        self._metadata: dict[int, MessageMetadata] = {}

    def __len__(self) -> int:
        return self._run.count

    def position(self, index: int) -> Position:
        return self._ledger, self._first + index

    def size_bytes(self, index: int) -> int:
        return self._run.lengths[index]

    def messages(self, index: int) -> int:
        return 1 if self._run.counts is None else self._run.counts[index]

    def metadata(self, index: int) -> MessageMetadata:
        """What the producer wrote about the entry; of a batch, what holds for all of it. Empty where it cannot be
        read.
        """
        found = self._metadata.get(index)
        if found is None:
            try:
                found = entry_metadata(self._run.parts[index])[0]
            except CorruptData:
                found = MessageMetadata()
            self._metadata[index] = found
        return found

    def property(self, index: int, name: str) -> str | None:
        """Returns the first property of that name in the metadata of entry `index`; None: there is none."""
        return next((pair.value for pair in self.metadata(index).properties if pair.key == name), None)


class EntryFilter:
    """One is made for a broker when it starts, by its class and without arguments; it serves every topic whose policy
    names it.
    """

    def decide(self, entries: Entries) -> Sequence[int] | None:
        """ACCEPT, REJECT, or RESCHEDULE for each entry, in order; None: all are accepted."""
        raise NotImplementedError


class Filtering:
    """What one subscription filters by, and how often it did. Counts are messages."""

    __slots__ = (
        "_failed",
        "_properties",
        "_subscription",
        "_topic",
        "accepted",
        "filters",
        "processed",
        "rejected",
        "rescheduled",
    )

    def __init__(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        self._topic, self._subscription, self._properties = topic, subscription, properties
        self.filters: tuple[tuple[str, EntryFilter | None], ...] = ()
        """(name, filter); None where this broker does not have it: then everything waits until an operator has
        decided.
        """
        self.processed = self.accepted = self.rejected = self.rescheduled = 0
        self._failed = ""

    def verdicts(self, ledger: int, first: int, run: Run) -> Sequence[int] | None:
        """One for each entry; None: all are accepted."""
        entries = Entries(self._topic, self._subscription, self._properties, ledger, first, run)
        out: list[int] | None = None
        for name, one in self.filters:
            given = self._ask(name, one, entries)
            if given is None:
                continue
            if out is None:
                out = list(given)
            else:
                out = [before if before != ACCEPT else now for before, now in zip(out, given, strict=True)]
        self._count(run, out)
        return out if out is not None and any(out) else None

    def _ask(self, name: str, one: EntryFilter | None, entries: Entries) -> Sequence[int] | None:
        wrong = (
            f"this broker has no entry filter {name!r}: add it to broker.entry_filters and start the broker again, or "
            "take it out of the policy"
        )
        if one is not None:
            try:
                given = one.decide(entries)
                if given is None or (
                    len(given) == len(entries) and all(verdict in (ACCEPT, REJECT, RESCHEDULE) for verdict in given)
                ):
                    return given
                wrong = f"{len(given)} answers for {len(entries)} entries, or answers that are none: {list(given)[:5]}"
            except Exception as error:  # an operator's code: whatever it raises, the broker goes on
                wrong = repr(error)
        if wrong != self._failed:
            self._failed = wrong
            log.error(
                "filter.failed",
                extra={"topic": self._topic, "subscription": self._subscription, "filter": name, "error": wrong},
            )
        return [RESCHEDULE] * len(entries)

    def _count(self, run: Run, verdicts: Sequence[int] | None) -> None:
        self.processed += run.messages
        if verdicts is None:
            self.accepted += run.messages
            return
        for index, verdict in enumerate(verdicts):
            messages = 1 if run.counts is None else run.counts[index]
            if verdict == ACCEPT:
                self.accepted += messages
            elif verdict == REJECT:
                self.rejected += messages
            else:
                self.rescheduled += messages
