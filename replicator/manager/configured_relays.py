"""ConfiguredRelays: whether a region may bring here what another one publishes, by the configuration, or by the word of
the region that publishes.

Is: the policies `replicationTopology` and `replicationRoutes` of this broker's topics as they hold here, and the
question to the origin's region where they do not say so: its record may be older or newer than the copy here, or its
topic's own policy is not known in this region. Isn't: what follows (`replicator.receiving.receiver_stream` ends the
stream, and the source comes again), or a tree that this region's own log knows already.
Invariants: nobody is believed for what he says of himself; one question at a time for each origin of a topic, few in
all, and one for all leaderships that are doubted; nothing is asked per entry. A leadership that is registered is never
disowned, whenever it began.
Source: docs/protocols/links.md, "Whose word counts".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from heliograph.model.configuration.replication_routes import delivers, relays
from heliograph.model.coordinates import Origin
from heliograph.model.errors import HeliographError
from heliograph.model.positions import Position
from heliograph.model.topic_names import TopicName
from heliograph.wire.links.audit_commands import Ask, AuditAnswer, What
from heliograph.wire.run import Run
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.routing_trees import is_tree

events = logging.getLogger("replicator")


class Leaderships(Protocol):
    """The numbers of the leaderships of namespaces, as the configuration has them."""

    def known(self, namespace: str) -> int:
        """The highest that there is, or was, as far as is known here; 0: none."""
        ...

    async def newest(self, namespace: str) -> int:
        """The same, and never late. Raises HeliographError."""
        ...


_ASKING_MAX = 64
"""Whoever makes up very many origins makes this broker ask no more at a time."""
_Record = tuple[Position, bytes]


class ConfiguredRelays:
    """What one broker in `region` believes of relays; implements the `RelayRights` of receivers.

    name_of: a region's number -> its name, also a number that no region has any more. ask: asks another region what it
    holds, and raises HeliographError where it cannot. pause_s: after so many failures before this one, in seconds.
    ended: whether nothing is published under an origin any more, by the configuration. leaderships: None: no namespace
    ever had one.
    """

    def __init__(
        self,
        region: str,
        name_of: Callable[[int], str | None],
        ask: Callable[[ReplicatedLog, str, Ask], Coroutine[Any, Any, AuditAnswer]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        pause_s: Callable[[int], float],
        ended: Callable[[Origin], bool],
        leaderships: Leaderships | None = None,
    ) -> None:
        self._pause_s, self.ended, self._leaderships = pause_s, ended, leaderships
        self._region, self._name_of, self._ask_region, self._spawn = region, name_of, ask, spawn
        self._policies: dict[str, Mapping[str, Any]] = {}
        """Those of topics that have one of the two."""
        self._confirmed: dict[tuple[str, Origin], _Record] = {}
        """The record that the origin's own region has told, of those that the policies here do not explain."""
        self._asking = set[tuple[str, Origin]]()
        self._doubted: dict[ReplicatedLog, None] = {}
        """Topics with a leadership that may not exist, by the copy of the configuration here."""

    def obey(self, log: ReplicatedLog, values: Mapping[str, Any]) -> None:
        """values: the policies that hold for the topic here."""
        if values.get("replicationTopology") is None and values.get("replicationRoutes") is None:
            self._policies.pop(log.topic, None)
        else:
            self._policies[log.topic] = values
        if self._leaderships is not None and self._is_doubtful(log):
            if not self._doubted:
                self._spawn(self._disown(self._leaderships))
            self._doubted[log] = None

    def leadership(self, log: ReplicatedLog) -> int:
        """The highest number of a leadership of the topic's namespace that there is, or was, as far as is known here:
        a run that names a higher one is not believed.
        """
        if self._leaderships is None:
            return 0
        return self._leaderships.known(TopicName.parse(log.topic).namespace)

    def believed(self, log: ReplicatedLog, run: Run) -> Run:
        """A run that another region told of when it was asked, with no other leadership than one that is known."""
        return run if run.leadership <= self.leadership(log) else run.led_by_none()

    def _is_doubtful(self, log: ReplicatedLog) -> bool:
        return log.state.producers.leadership > self.leadership(log)

    async def _disown(self, leaderships: Leaderships) -> None:
        """An earlier version believed whatever a run named. The copy here may be late: whoever decides is asked, until
        there is an answer.
        """
        failures = 0
        while self._doubted:
            log = next(iter(self._doubted))
            if self._is_doubtful(log):
                try:
                    newest = await leaderships.newest(TopicName.parse(log.topic).namespace)
                except HeliographError as error:
                    events.info("link.leadership_not_asked", extra={"topic": log.topic, "error": str(error)})
                    await asyncio.sleep(self._pause_s(failures))
                    failures += 1
                    if log in self._doubted:  # what cannot be told of one says nothing of the others
                        self._doubted[log] = self._doubted.pop(log)
                    continue
                failures = 0
                if log in self._doubted:
                    self._settle(log, newest)
            self._doubted.pop(log, None)

    def _settle(self, log: ReplicatedLog, newest: int) -> None:
        """newest: as it was asked for; what the copy here has heard since may be newer."""
        believed, newest = log.state.producers.leadership, max(newest, self.leadership(log))
        if log.closed is None and log.state.producers.disown(newest):
            events.warning(
                "link.leadership_disowned", extra={"topic": log.topic, "leadership": believed, "newest": newest}
            )

    def forget(self, log: ReplicatedLog) -> None:
        """The topic is unloaded here."""
        self._policies.pop(log.topic, None)
        self._doubted.pop(log, None)
        for key in [key for key in self._confirmed if key[0] == log.topic]:
            del self._confirmed[key]

    def region_of(self, origin: Origin) -> str | None:
        """The name of the region that publishes under it; None: its number is not known here (yet)."""
        return self._name_of(origin[0])

    def refusal(self, log: ReplicatedLog, source: str, origin: Origin, record: Run) -> str:
        """Why `source` may not pass on what the region of `origin` publishes, though `record`, the first one that came
        of it, says so; "": it may.
        """
        name, here = self.region_of(origin), self._region
        values = self._policies.get(log.topic, {})
        if name is None:
            return f"{here} knows no region with number {origin[0]}"
        if not delivers(values.get("replicationRoutes"), name, here):
            return f"no route leads from {name} to {here}, by the replicationRoutes in {here}"
        if source in relays(values.get("replicationTopology"), name, here):
            return ""
        found = (record.coordinate(0), bytes(record.parts[0]))
        if self._confirmed.get((log.topic, origin)) == found:
            return ""
        self._ask(log, name, origin, found)
        return (
            f"by the replicationTopology in {here} nothing from {name} comes by way of {source}, and {name} itself has "
            "not said so; it is asked"
        )

    def _ask(self, log: ReplicatedLog, name: str, origin: Origin, found: _Record) -> None:
        if (log.topic, origin) not in self._asking and len(self._asking) < _ASKING_MAX:
            self._asking.add((log.topic, origin))
            self._spawn(self._asked(log, name, origin, found))

    async def _asked(self, log: ReplicatedLog, name: str, origin: Origin, found: _Record) -> None:
        at = found[0]
        try:
            answer = await self._ask_region(log, name, Ask(What.ENTRIES, origin, (at[0], at[1] - 1), at, whole=True))
            told = [
                (run.coordinate(0), bytes(run.parts[0])) for run in answer.runs if is_tree(run) and run.origin == origin
            ]
            if found in told and log.closed is None:
                self._confirmed[log.topic, origin] = found
        except HeliographError as error:  # the source comes again, and then it is asked again
            events.info("link.origin_not_asked", extra={"topic": log.topic, "source": name, "error": str(error)})
        finally:
            self._asking.discard((log.topic, origin))
