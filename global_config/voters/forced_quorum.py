"""A forced quorum: the global configuration goes on in one region, without the voters that are lost.

Is: the plan of it and what refuses it, what is written down and put in doubt, and how a member that was left behind
comes back. Isn't: a rule of Raft (`heliograph.raft.generations`), or what a person sees (`heliograph.cli`).
Invariants: nothing is forced while a majority is there, while any other member is heard, or while one is not named as
lost; where the lost ones may have decided something that this one knows nothing of, an operator says that they are
stopped, and everything that may have moved asks, as after a restore, before anybody's command. No lease that the lost
ones may have renewed ends earlier than a full ttl after it. What a member that was left behind holds is set aside, and
never overwritten; it comes back as a learner with an empty folder.
Source: docs/decisions/0244-a-forced-quorum-is-another-generation.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from global_config import keys
from global_config.backup import DOUBTED, EPOCHS_MARGIN, NUMBERS_MARGIN, restored_value
from global_config.transport.config_transport import ConfigTransport, MemberRefused
from heliograph.kv.machine_commands import CommandKind, CommandStatus, MalformedCommand, command, ok, txn_fields, unpack
from heliograph.kv.metadata_store import Delete, Op, Put, prefix_end
from heliograph.kv.server.members_api import MembersApi
from heliograph.kv.state_machine import KvMachine
from heliograph.kv.unreadable_records import readable
from heliograph.model.configuration.leadership import FLOOR, WRITERS
from heliograph.model.errors import CorruptData, MetadataError, MetadataUnavailable, NotAllowed
from heliograph.raft.generations import is_lossy, number_of
from heliograph.raft.member.raft_node import RaftNode
from heliograph.raft.membership import AddLearner, Promote
from heliograph.raft.messages import LaterGeneration, encode
from heliograph.runtime.clock import Clock
from heliograph.wire.metadata_frames import Frame, body

HEARD_S = 20.0
"""Three times as long as a lease of a broker lasts."""
STOPPED = "stopped"
"""What the third field of `force` says where an operator knows that the lost ones do not run."""
WHY = "the configuration was forced, and may lack what the lost regions decided"
TELL_S = 10.0
"""So often who goes on tells the others that they were left behind."""
_AT_ONCE = 100
"""So many rows are changed by one transaction."""
_BYTES_AT_ONCE = 512 << 10
"""Rows of so many bytes are, and of one row more: far below what a transaction may have."""
_ANSWER_S = 1.0
_GENERATION_DIGITS_MAX = 20


def left_behind(record: bytes) -> dict[str, str]:
    """The members that forced quorums left behind, by the record of that, and the address of each, as `AddLearner` has
    it. They may have come back since. {}: it cannot be read, which is told.
    """
    found: dict[str, str] = (readable(_record, keys.FORCED, record) or {}).get("addresses", {})
    return found


def _record(value: bytes) -> dict[str, Any]:
    """What stands at `keys.FORCED` or `keys.FORCING`, as format 1 has it. Raises CorruptData."""
    try:
        found: dict[str, Any] = json.loads(value)
        if found["format"] != 1:
            raise CorruptData(f"a forced quorum: of format {found['format']}; this version reads format 1")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptData(f"a forced quorum: {error!r}") from error
    return found


def _txn(*ops: Op) -> bytes:
    return command(CommandKind.TXN, txn_fields(ops))


def _forcing(record: dict[str, Any]) -> Put:
    return Put(keys.FORCING, json.dumps(record, sort_keys=True).encode())


def _doubts(machine: KvMachine, forcing: dict[str, Any]) -> Iterator[bytes]:
    """Commands that put in doubt what may have moved, behind the row that `forcing` says it has come through. An empty
    one stands for rows that stay as they are.
    """
    for prefix in sorted(DOUBTED):
        start, end = max(prefix, forcing["through"] + "\0"), prefix_end(prefix)
        more = start < end
        while more:
            rows, more = machine.range(start, end, _AT_ONCE, _BYTES_AT_ONCE)
            changed = []
            for key, value, _ in rows:
                start = key + "\0"
                if (new := restored_value(key, value, forcing["at_ms"], WHY)) != value:
                    changed.append(Put(key, new))
            yield _txn(*changed, _forcing({**forcing, "through": rows[-1][0]})) if changed else b""


def _generation(said: str) -> int:
    """Raises NotAllowed where it is none: 64 bits."""
    if len(said) > _GENERATION_DIGITS_MAX or not said.isdecimal():
        raise NotAllowed(f"{said[:50]!r} is no generation")
    return int(said)


class ForcedQuorum:
    """Answers the verbs of it at one node. heard_s: for so long nothing must have been heard of the lost ones."""

    def __init__(
        self, raft: RaftNode, machine: KvMachine, transport: ConfigTransport, clock: Clock, heard_s: float = HEARD_S
    ) -> None:
        self._raft, self._machine, self._transport, self._clock = raft, machine, transport, clock
        self._heard_s = heard_s

    async def answer(self, api: MembersApi, verb: str, member: str, said: str, *, timeout_s: float) -> bytes | None:
        """None: the verb is none of it. Raises NotAllowed with the reason of a refusal, MetadataUnavailable,
        OutcomeUnknown.
        """
        match verb:
            case "force" | "dry-force":
                lost = sorted(filter(None, member.split(",")))
                return ok(*await self._force(api, lost, verb == "dry-force", said == STOPPED, timeout_s))
            case "rejoin":
                return ok(api.report(), await self._rejoin(member, timeout_s))
            case "set-aside":
                return ok(self._set_aside(_generation(said)), self._raft.settled)
        return None

    # -- forcing ------------------------------------------------------------------------------------------------------

    async def _force(
        self, api: MembersApi, lost: Sequence[str], dry: bool, stopped: bool, timeout_s: float
    ) -> tuple[dict[str, Any], bool]:
        """The report with the plan, and whether something was, or would be, changed."""
        raft = self._raft
        if raft.generation and raft.is_leader and raft.config.voters == (raft.node_id,):
            return {**api.report(), "plan": None}, False
        plan = await self._plan(lost, stopped)
        if not dry:
            if plan["refused"]:
                raise NotAllowed(plan["refused"][0])
            await raft.force(timeout_s=timeout_s)
        return {**api.report(), "plan": plan}, not plan["refused"]

    async def _plan(self, lost: Sequence[str], stopped: bool) -> dict[str, Any]:
        raft = self._raft
        config, own = raft.config, raft.node_id
        others = [member for member in config.members if member != own]
        answers = [member for member in others if await self._answers(member)]
        silent_s = {member: round(raft.silent_s(member), 1) for member in others}
        writers = [row[0].removeprefix(WRITERS).rpartition(".")[0] for row in self._machine.under(WRITERS)]
        return {
            "voters": list(config.voters),
            "lost": [member for member in config.voters if member != own],
            "majority": len(config.voters) // 2 + 1,
            "others_may_decide": raft.others_may_decide,
            "silent_s": silent_s,
            "addresses": {member: address for member, address in config.addresses if member != own},
            "generation": number_of(raft.generation) + 1,
            "term": raft.term,
            "last_index": raft.last_index,
            "committed": raft.commit_index,
            "applied": raft.applied_index,
            "writers": [writer for writer in writers if writer.partition("/")[0] != own],
            "wait_s": max(self._machine.leases().values(), default=0) / 1000,
            "refused": self._refused(lost, others, answers, silent_s, stopped),
        }

    def _refused(
        self, lost: Sequence[str], others: list[str], answers: list[str], silent_s: dict[str, float], stopped: bool
    ) -> list[str]:
        """Why it may not be; empty where it may."""
        raft = self._raft
        own, why = raft.node_id, []
        try:
            raft.examine_force()
        except NotAllowed as error:
            why.append(str(error))
        if unknown := sorted({*lost} - {*others}):
            there = ", ".join(others) or "no others"
            why.append(f"{', '.join(unknown)}: no other member of the configuration as {own} has it; there are {there}")
        why += [f"{member} answers {own}: it is not lost" for member in answers]
        for member in others:
            if member not in answers and silent_s[member] < self._heard_s:
                why.append(
                    f"{member} was heard {silent_s[member]:g} s ago, or this node was started then: nothing must have "
                    f"been heard of it for {self._heard_s:g} s"
                )
        if missing := [member for member in others if member not in lost]:
            why.append(
                f"{own} goes on alone, and {', '.join(missing)} is not named as lost: where it runs, stop its "
                "configuration process, and name it, too; it comes back by `heliograph config rejoin`"
            )
        if raft.others_may_decide and not stopped:
            why.append(
                f"{', '.join(others)} may be a majority without {own}: where they run, they go on deciding, renew "
                "their leases, and confirm, beside what is forced here. Stop their configuration processes, and say so "
                "by --lost-are-stopped"
            )
        return why

    async def _answers(self, member: str) -> bool:
        try:
            await self._transport.forward(member, bytes([Frame.MEMBERS]) + body("show", "", ""), timeout_s=_ANSWER_S)
        except MemberRefused:  # also who takes this one for no member any more
            return True
        except MetadataError:
            return False
        return True

    def beginning(self, machine: KvMachine) -> Iterator[bytes]:
        """What the leader of a generation applies before anybody's command, until that is written down. How far it has
        come stands in the table with each step, so that it is gone on with, by the same clock.
        """
        generation, found = self._raft.generation, machine.get(keys.FORCED)
        done = None if found is None else readable(_record, keys.FORCED, found[0])
        if not generation or (done is not None and done.get("generation") == generation):
            return
        begun = machine.get(keys.FORCING)
        forcing = {} if begun is None else readable(_record, keys.FORCING, begun[0]) or {}
        if forcing.get("generation") != generation:
            forcing = {"format": 1, "generation": generation, "at_ms": self._clock.wall_ms(), "through": ""}
            if is_lossy(generation):
                for counter, margin in ((keys.NUMBERS, NUMBERS_MARGIN), (keys.INCARNATIONS, EPOCHS_MARGIN)):
                    yield command(CommandKind.NEXT_IDS, [counter, margin, 1])
            yield _txn(_forcing(forcing))
        at_ms: int = forcing["at_ms"]
        last: list[Op] = []
        if is_lossy(generation):
            yield from _doubts(machine, forcing)
            if machine.get(FLOOR) is None:
                last.append(Put(FLOOR, b"%d" % at_ms))
            last.append(Put(keys.RESTORED, b"%d" % at_ms))
        record = {
            "format": 1,
            "generation": generation,
            "by": self._raft.node_id,
            "at_ms": at_ms,
            "addresses": ({} if found is None else left_behind(found[0])) | self._raft.left_behind(),
            "left_index": self._raft.left_index,
        }
        told = Put(keys.FORCED, json.dumps(record, sort_keys=True).encode())
        yield _txn(*last, told, Delete(keys.FORCING))

    async def tell(self) -> None:
        """Tells those that were left behind, and have not come back: one of them may have been forced as well, and asks
        nobody any more, or have been away since before this member joined, and not know it.
        """
        raft = self._raft
        if raft.is_leader and raft.generation:
            found = self._machine.get(keys.FORCED)
            left: int = 0 if found is None else json.loads(found[0]).get("left_index", 0)
            for member in self._left_behind():
                if member not in raft.config.members:
                    told = LaterGeneration(0, left or raft.left_index)
                    self._transport.send(member, encode(told, raft.generation))

    def _left_behind(self) -> dict[str, str]:
        found = self._machine.get(keys.FORCED)
        return ({} if found is None else left_behind(found[0])) | self._raft.left_behind()

    # -- coming back --------------------------------------------------------------------------------------------------

    async def _rejoin(self, member: str, timeout_s: float) -> bool:
        """Whether it was no voter yet. Each step may be repeated; where time is needed the refusal says so."""
        raft = self._raft
        if not raft.generation:
            raise NotAllowed("the configuration was not forced: `heliograph meta members --config` shows its members")
        if member in raft.config.voters:
            return False
        if member not in raft.config.members:
            lost = self._left_behind()
            if member not in lost:
                raise NotAllowed(f"{member} was not left behind: `heliograph meta add` adds a member that is new")
            await self._change("add", member, lost[member], timeout_s)
        if not await self._set_aside_by(member):
            raise NotAllowed(f"{member} does not count yet: try again in a moment")
        return await self._change("promote", member, "", timeout_s)

    async def _change(self, verb: str, member: str, address: str, timeout_s: float) -> bool:
        """By the leader, which may be another one by now. Raises as `answer`."""
        raft = self._raft
        if raft.leader is None or raft.is_leader:
            change = AddLearner(member, address) if verb == "add" else Promote(member)
            return await raft.change(change, timeout_s=timeout_s)
        request = bytes([Frame.MEMBERS]) + body(verb, member, address)
        status, *found = unpack(await self._transport.forward(raft.leader, request, timeout_s=timeout_s))
        if status == CommandStatus.REFUSED:
            raise NotAllowed(str(found[0]))
        if status != CommandStatus.OK:
            raise MetadataUnavailable(f"{raft.leader} leads no more: try again in a moment")
        return bool(found[1])

    async def _set_aside_by(self, member: str) -> bool:
        """Once it has set aside what it held: whether it counts, and will, as a voter."""
        request = bytes([Frame.MEMBERS]) + body("set-aside", member, str(self._raft.generation))
        try:
            status, *found = unpack(await self._transport.forward(member, request, timeout_s=_ANSWER_S))
        except (MetadataError, MalformedCommand) as error:
            raise NotAllowed(f"{member} does not answer: start its configuration process ({error})") from error
        if status == CommandStatus.NOT_LEADER:
            raise NotAllowed(f"{member} sets nothing aside: it is of an earlier version, upgrade it first")
        if status == CommandStatus.REFUSED:
            raise NotAllowed(f"{member} sets nothing aside: {found[0]}")
        if status != CommandStatus.OK:  # it is ending, or has not begun
            raise NotAllowed(f"{member} does not answer: {found[0]}")
        if found[0]:
            raise NotAllowed(f"{member} sets aside what it held, and starts again: try again in a moment")
        return bool(found[1])

    def _set_aside(self, generation: int) -> bool:
        """Whether there is something, which is set aside now."""
        raft = self._raft
        if raft.holds_nothing or (raft.generation == generation and not raft.standing.superseded):
            return False
        raft.set_aside(generation)
        return True
