"""MembersApi: what an operator asks of a group's members, as requests and answers.

Is: the fields of the MEMBERS frame, the report, and which call each verb becomes. Isn't: a rule of Raft (`membership`,
`leader`), or a socket.
Invariants: changes are answered by the leader alone, once they are committed; repeating one does no harm; what any
member may say ("here") it says without asking anybody, and so also where nobody leads.

    request [verb, member, address]
            verb: here | show | add | promote | remove | transfer     answer: report, whether something was changed
                  dry-add | dry-promote | dry-remove | dry-transfer   nothing is done; whether something would change
            verb: force | dry-force | rejoin, at the node that is to do it, and set-aside, which another node asks for:
                  `OwnVerbs`, where the group has them
    report  {group, node, leader or nil, term, generation, superseded, commit, applied, writes {count, p50_ms, p99_ms},
             members [{member, role, leads, address, behind, silent_s}]}

`behind` (entries that it lacks) and `silent_s` are nil where the answering node does not lead.
"""

from __future__ import annotations

from typing import Any, Protocol

from heliograph.kv.machine_commands import ok
from heliograph.model.errors import NotAllowed, NotLeader
from heliograph.raft.generations import number_of
from heliograph.raft.member.raft_node import RaftNode
from heliograph.raft.membership import AddLearner, Change, Promote, Remove
from heliograph.wire.metadata_frames import fields

_OWN = ("force", "dry-force", "rejoin")
_PASSED_ON = "set-aside"


class OwnVerbs(Protocol):
    """What one node does, or says, whoever leads."""

    async def answer(self, api: MembersApi, verb: str, member: str, said: str, *, timeout_s: float) -> bytes | None: ...


class MembersApi:
    """Answers for one node of a group. group: "meta" or "config"."""

    def __init__(self, raft: RaftNode, group: str, own: OwnVerbs | None = None) -> None:
        self.raft, self.group, self._own = raft, group, own

    async def own(self, payload: bytes, *, timeout_s: float) -> bytes | None:
        """The answer to what its own clients ask of this node; None where it is nothing of that. Raises as `answer`."""
        verb, member, said = fields(payload, str, str, str)
        if self._own is None or verb not in _OWN:
            return None
        return await self._own.answer(self, verb, member, said, timeout_s=timeout_s)

    def here(self, payload: bytes) -> bytes | None:
        """The answer that any member gives; None where the leader is asked. Raises PeerError."""
        verb, _, _ = fields(payload, str, str, str)
        return ok(self.report(), False) if verb == "here" else None

    async def answer(self, payload: bytes, *, timeout_s: float) -> bytes:
        """Gives the leader's answer. Raises NotAllowed with the reason of a refusal, MetadataUnavailable,
        OutcomeUnknown, PeerError.
        """
        verb, member, address = fields(payload, str, str, str)
        if verb == _PASSED_ON and self._own is not None:
            answer = await self._own.answer(self, verb, member, address, timeout_s=timeout_s)
            assert answer is not None
            return answer
        if not self.raft.is_leader:
            raise NotLeader(self.raft.leader)
        dry, verb = verb.startswith("dry-"), verb.removeprefix("dry-")
        changes: dict[str, Change] = {
            "add": AddLearner(member, address),
            "promote": Promote(member),
            "remove": Remove(member),
        }
        done = False
        if verb == "show":
            await self.raft.read_barrier(timeout_s=timeout_s)
        elif verb in changes:
            done = (
                self.raft.examine(changes[verb]) if dry else await self.raft.change(changes[verb], timeout_s=timeout_s)
            )
        elif verb == "transfer":
            done = self.raft.examine_transfer(member) if dry else await self.raft.transfer_leadership(member)
        else:
            raise NotAllowed(f"{verb[:50]!r} is nothing that can be done with a member")
        return ok(self.report(), done)

    def report(self) -> dict[str, Any]:
        raft = self.raft
        writes = sorted(raft.write_s)
        return {
            "group": self.group,
            "node": raft.node_id,
            "leader": raft.leader,
            "term": raft.term,
            "generation": number_of(raft.generation),
            "superseded": bool(raft.standing.superseded),
            "commit": raft.commit_index,
            "applied": raft.applied_index,
            "writes": {
                "count": len(writes),
                "p50_ms": round(writes[len(writes) // 2] * 1000, 3) if writes else None,
                "p99_ms": round(writes[len(writes) * 99 // 100] * 1000, 3) if writes else None,
            },
            "members": [
                {
                    "member": state.member,
                    "role": "voter" if state.voter else "learner",
                    "leads": state.leads,
                    "address": state.address,
                    "behind": state.behind,
                    "silent_s": None if state.silent_s is None else round(state.silent_s, 3),
                }
                for state in raft.members()
            ],
        }
