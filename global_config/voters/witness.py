"""A witness: a voter of the global configuration that is no region, so that the loss of one of two regions leaves a
majority.

Is: which members those are, and where such a node wants the leadership to be. Isn't: anything in Raft; it votes, holds
the log, and may be elected as every voter, for it may be the only one that has all of it.
Invariants: it leads while it reaches every member, so that regions that do not reach each other both reach the leader;
one that it does not reach may be reached by a region, so it hands the leadership to one that answers, and takes it
again only once all of them have answered it, but learners that nobody has heard for long. With a full disk it leads
nobody: as leader it would refuse every write.
Source: docs/decisions/0242-a-witness-leads-while-it-reaches-all.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from heliograph.kv.machine_commands import CommandStatus, MalformedCommand, unpack
from heliograph.model.errors import HeliographError, PeerError
from heliograph.runtime.clock import Clock
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet
from heliograph.wire.metadata_frames import Frame, body

if TYPE_CHECKING:
    from global_config.node import ConfigNode

log = logging.getLogger("global_config")

LOOK_S = 1.0
SILENT_S = 2.0
"""A member that a leading witness has not heard for so long may hear a region; brokers' leases are three times as
long."""
TAKE_S = 60.0
"""A region leads for so long before the witness takes the leadership, so that one that comes and goes disturbs
seldom."""
BRIEF_S = 30.0
"""A witness that gives the leadership so soon after it took it is answered by members that it does not hear."""
PAUSE_MAX_S = 3600.0
"""The pause before it takes the leadership again doubles with each such time, up to this."""
ABSENT_S = 600.0
"""A learner that neither the leader has heard for so long nor the witness hears counts no longer: it may be a region
that was added and is not started."""
LAG_MAX = 100
"""Entries that the next leader may lack: commands wait until it has them."""
_ANSWER_S = 2.0


class WitnessLeadership:
    """Looks each LOOK_S at who leads, once it is started. node: the witness's own."""

    def __init__(self, node: ConfigNode, clock: Clock) -> None:
        self._node, self._clock = node, clock
        self._pause_s = TAKE_S
        self._take_at = clock.monotonic() + TAKE_S
        self._took_at = -BRIEF_S
        self._absent: set[str] = set()
        """Learners that counted no longer when it last asked for the leadership, and were not heard since."""
        self._tasks = TaskSet("the look at who leads the configuration has ended")

    def start(self) -> None:
        self._tasks.spawn(every(LOOK_S, self.look, failed=_not_looked))

    async def stop(self) -> None:
        await self._tasks.close()

    async def look(self) -> None:
        """Looks once at who leads, and whether another should."""
        node, now = self._node, self._clock.monotonic()
        if node.raft.is_leader:
            brief = now < self._took_at + BRIEF_S
            if not brief:
                self._pause_s = TAKE_S
            if await self._gives(brief) and brief:
                self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
                log.warning("config.leadership_was_brief", extra={"pause_s": self._pause_s})
            self._take_at = now + self._pause_s
        elif (leader := node.raft.leader) is None:
            self._take_at = max(self._take_at, now + TAKE_S)
        elif now >= self._take_at and node.node_id in node.raft.config.voters:
            self._take_at = now + TAKE_S
            if not node.raft.full and await self._reaches_all(leader):
                await self._take(leader)

    async def _gives(self, brief: bool) -> bool:
        """Hands the leadership over where another member had better have it; whether it did. brief: it has led for so
        short a time that who counts as heard may not have been.
        """
        others = [row for row in self._node.members() if row.member != self._node.node_id]
        heard = [row for row in others if row.silent_s is not None and row.silent_s <= SILENT_S]
        if not brief:
            self._absent.difference_update(row.member for row in heard)
        if all(row in heard or row.member in self._absent for row in others) and not self._node.raft.full:
            return False
        ready = [row for row in heard if row.voter and row.behind is not None and row.behind <= LAG_MAX]
        heirs = {row.member: row.behind or 0 for row in ready}
        for heir in sorted(heirs, key=lambda member: heirs[member]):
            try:
                await self._node.transfer_leadership(heir)
            except HeliographError as error:  # it was too slow: another, or at the next look
                log.info("config.leadership_not_given", extra={"to": heir, "error": str(error)})
            else:
                log.info("config.leadership_given", extra={"to": heir, "full": self._node.raft.full})
                return True
        return False

    async def _reaches_all(self, leader: str) -> bool:
        """Whether all answer but learners that the leader, too, has not heard for long."""
        try:
            status, *found = await self._ask(leader, "show", "")
            rows = found[0]["members"] if status == CommandStatus.OK else []
            silent = {row["member"] for row in rows if (row["silent_s"] or 0.0) > ABSENT_S}
            self._absent = silent.intersection(self._node.raft.config.learners)
            for member in self._node.raft.config.members:
                if member not in (leader, self._node.node_id, *self._absent):
                    await self._ask(member, "show", "")  # who does not lead says so, which is an answer
        except HeliographError:
            return False
        return True

    async def _take(self, leader: str) -> None:
        self._took_at = self._clock.monotonic()
        try:
            status, *found = await self._ask(leader, "transfer", self._node.node_id)
        except HeliographError as error:
            log.info("config.leadership_not_taken", extra={"leader": leader, "error": str(error)})
            return
        if status == CommandStatus.OK:
            log.info("config.leadership_taken", extra={"from": leader})
        else:
            log.info("config.leadership_not_taken", extra={"leader": leader, "error": str(found[:1])})

    async def _ask(self, member: str, verb: str, about: str) -> list[Any]:
        """The answer: its status, and what that comes with. Raises HeliographError."""
        request = bytes([Frame.MEMBERS]) + body(verb, about, "")
        try:
            return unpack(await self._node.transport.forward(member, request, timeout_s=_ANSWER_S))
        except MalformedCommand as error:
            raise PeerError(f"{member!r} answers with something else: {error}") from error


def _not_looked(error: HeliographError) -> None:
    log.warning("config.leadership_not_looked_at", extra={"error": str(error)})


def marked(report: dict[str, Any], regions: Collection[str]) -> dict[str, Any]:
    """A report of the configuration's members in which `witness` says of each whether it is one: a voter that is no
    region.
    """
    rows = [{**row, "witness": row["role"] == "voter" and row["member"] not in regions} for row in report["members"]]
    return {**report, "members": rows}
