"""Group: the members of one consumer group, as Kafka's classic protocol moves them, as a pure core.

Is: who is in, generations, who assigns, who waits for what, and time-outs. Isn't: offsets, storage, or sockets
(`group_coordinator`).
Invariants: an assignment reaches members only in the generation it was made for; a generation's answers go to all its
members or to none; who does not come back in time is out; a static member that comes again takes its old place, and the
one before it is fenced.
Bounds: `members_max` members, and MEMBERS_BYTES_MAX of them and their assignments, as they are stored.
Cost: a join takes as long as its own protocols, however many the other members have.
Events are method calls with `now` (monotonic seconds); what is to be answered comes out of `take_answers`, as (waiter,
fields).
Source: Kafka KIP-62, KIP-134, KIP-345, KIP-394, KIP-429; docs/protocols/kafka.md, "Groups".
"""

from __future__ import annotations

from typing import Any

import msgpack

from heliograph.kv.metadata_store import VALUE_BYTES_MAX
from heliograph.model.errors import CorruptData
from heliograph.wire.kafka.message_codec import Fields
from region_node.faces.kafka.error_codes import Code

FORMAT = 1
_HEAD_BYTES = 4 << 10
"""More than what is stored of a group beside its members has, its protocols' names left out."""
MEMBERS_BYTES_MAX = VALUE_BYTES_MAX - _HEAD_BYTES
"""A group of more could not be stored. It is room for 1,000 members that say 1 KiB of themselves."""
PENDING_S = 60.0
"""Who was given an id, and is to come back with it, has so long, or its session's time where that is less."""
_ASSIGNMENT_BYTES = 5
"""What comes before an assignment where it is stored, at most."""
EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
Waiter = Any
Protocols = list[tuple[str, bytes]]


def _size_bytes(name: str) -> int:
    return len(name.encode())


class GroupMember:
    """`joining`, `syncing`: who waits for its answer."""

    __slots__ = (
        "assignment",
        "client",
        "deadline",
        "host",
        "id",
        "instance",
        "joining",
        "protocols",
        "rebalance_s",
        "session_s",
        "size_bytes",
        "syncing",
    )

    def __init__(
        self,
        member: str,
        instance: str | None,
        client: str,
        host: str,
        session_s: float,
        rebalance_s: float,
        protocols: Protocols,
    ) -> None:
        self.id, self.instance, self.client, self.host = member, instance, client, host
        self.session_s, self.rebalance_s, self.protocols = session_s, rebalance_s, protocols
        self.assignment = b""
        self.joining: Waiter | None = None
        self.syncing: Waiter | None = None
        self.deadline = 0.0
        self.size_bytes = 0
        """As it is stored, its assignment left out; as it was when it was last measured."""

    def measure(self) -> int:
        packed: bytes = msgpack.packb([*self._stored(), b""])
        self.size_bytes = len(packed) - 2 + _ASSIGNMENT_BYTES
        return self.size_bytes

    def stored(self, *, assigned: bool) -> list[Any]:
        return [*self._stored(), self.assignment if assigned else b""]

    def _stored(self) -> list[Any]:
        return [self.id, self.instance, self.client, self.host, self.session_s, self.rebalance_s, self.protocols]

    def metadata(self, protocol: str) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


class MemberTotals:
    """What all members of a group have together, kept as they come and go. `known_by`: protocol -> how many members
    have it.
    """

    __slots__ = ("known_by", "size_bytes")

    def __init__(self) -> None:
        self.known_by: dict[str, int] = {}
        self.size_bytes = 0

    def add(self, member: GroupMember) -> None:
        """It is a member from now on, and what it says of itself stays until it is dropped."""
        self.size_bytes += member.measure()
        for name in {name for name, _ in member.protocols}:
            self.known_by[name] = self.known_by.get(name, 0) + 1

    def drop(self, member: GroupMember) -> None:
        self.size_bytes -= member.size_bytes
        for name in {name for name, _ in member.protocols}:
            self.known_by[name] -= 1
            if not self.known_by[name]:
                del self.known_by[name]

    def has_room(self, more_bytes: int, *names: str) -> bool:
        """Whether the group can be stored with so much more. names: that are stored of the group itself."""
        return self.size_bytes + more_bytes + sum(map(_size_bytes, names)) <= MEMBERS_BYTES_MAX


class Group:
    """`changed`: what is stored of it is not what is true."""

    def __init__(self, name: str, *, delay_s: float, members_max: int) -> None:
        self.name = name
        self.state, self.generation, self.protocol_type, self.protocol, self.leader = EMPTY, 0, "", "", ""
        self.members: dict[str, GroupMember] = {}
        self.changed = False
        self.subscription_changes = 0
        """How often what its members subscribe to has changed."""
        self.empty_since_ms = 0
        self._static: dict[str, str] = {}
        self._totals = MemberTotals()
        self._pending: dict[str, float] = {}
        self._delay_s, self._members_max = delay_s, members_max
        self._until = self._latest = 0.0
        self._delayed = False
        self._answers: list[tuple[Waiter, Fields]] = []

    @property
    def is_awaited(self) -> bool:
        """Whether ids were given out with which somebody is to come back."""
        return bool(self._pending)

    def take_answers(self) -> list[tuple[Waiter, Fields]]:
        answers, self._answers = self._answers, []
        return answers

    # -- joining -------------------------------------------------------------------------------------------------------

    def join(
        self,
        now: float,
        member: GroupMember,
        protocol_type: str,
        new_id: str,
        waiter: Waiter,
        *,
        needs_id: bool,
        may_skip: bool,
    ) -> None:
        """member.id "": it is new, and gets `new_id`. needs_id: it must come back with it first."""
        code = self._refusal(member, protocol_type, new_id)
        if not code:
            self.protocol_type = protocol_type
        if code:
            self._refuse(waiter, code, member.id)
        elif member.instance is not None and self._static.get(member.instance) is not None:
            self._join_static(now, member, new_id, waiter, may_skip)
        elif not member.id:
            if len(self.members) + len(self._pending) >= self._members_max:
                self._refuse(waiter, Code.GROUP_MAX_SIZE_REACHED, "")
            elif needs_id and member.instance is None:
                self._pending[new_id] = now + min(member.session_s, PENDING_S)
                self._refuse(waiter, Code.MEMBER_ID_REQUIRED, new_id)
            else:
                member.id = new_id
                self._add(now, member, waiter)
        elif member.id in self._pending:
            del self._pending[member.id]
            self._add(now, member, waiter)
        elif member.id not in self.members:
            self._refuse(waiter, Code.UNKNOWN_MEMBER_ID, member.id)
        else:
            self._join_again(now, member, waiter)

    def _refusal(self, member: GroupMember, protocol_type: str, new_id: str) -> Code:
        if not member.protocols or not protocol_type:
            return Code.INCONSISTENT_GROUP_PROTOCOL
        ids = {member.id, "" if member.instance is None else self._static.get(member.instance, "")}
        before = [known for each in ids if (known := self.members.get(each)) is not None]
        others = len(self.members) - len(before)
        names = {name for name, _ in member.protocols}
        if others:
            had = [{name for name, _ in known.protocols} for known in before]
            common = any(
                self._totals.known_by.get(name, 0) - sum(name in each for each in had) == others for name in names
            )
            if protocol_type != self.protocol_type or not common:
                return Code.INCONSISTENT_GROUP_PROTOCOL
        more = member.measure() + len(new_id.encode()) - sum(known.size_bytes for known in before)
        if not self._totals.has_room(more, protocol_type, max(names, key=_size_bytes)):
            return Code.GROUP_MAX_SIZE_REACHED
        return Code.NONE

    def _join_static(self, now: float, member: GroupMember, new_id: str, waiter: Waiter, may_skip: bool) -> None:
        assert member.instance is not None
        known = self.members[self._static[member.instance]]
        if member.id and member.id != known.id:
            self._refuse(waiter, Code.FENCED_INSTANCE_ID, member.id)
            return
        if member.id:
            self._join_again(now, member, waiter)
            return
        same = known.protocols == member.protocols
        was_leader = self.leader == known.id
        member.id, member.assignment = new_id, known.assignment
        self._totals.drop(known)
        self._totals.add(member)
        for waiting in (known.joining, known.syncing):
            if waiting is not None:
                self._answers.append((waiting, {"error_code": Code.FENCED_INSTANCE_ID, "member_id": known.id}))
        self.members = {
            (new_id if key == known.id else key): (member if key == known.id else value)
            for key, value in self.members.items()
        }
        self._static[member.instance] = new_id
        self.changed = True
        self.subscription_changes += 1
        old_leader = self.leader
        if was_leader:
            self.leader = new_id
        self._heard(now, member)
        if self.state == STABLE and same:
            answer = self._joined(member)
            if was_leader and may_skip:
                answer["skip_assignment"] = True
            elif was_leader:
                answer["leader"], answer["members"] = old_leader, []
            self._answers.append((waiter, answer))
        else:
            member.joining = waiter
            self._prepare(now)

    def _add(self, now: float, member: GroupMember, waiter: Waiter) -> None:
        self.members[member.id] = member
        self._totals.add(member)
        self.subscription_changes += 1
        if member.instance is not None:
            self._static[member.instance] = member.id
        if not self.leader:
            self.leader = member.id
        member.joining = waiter
        self._heard(now, member)
        self._prepare(now, fresh=True)

    def _join_again(self, now: float, member: GroupMember, waiter: Waiter) -> None:
        known = self.members[member.id]
        same = known.protocols == member.protocols
        self._totals.drop(known)
        known.session_s, known.rebalance_s, known.client, known.host = (
            member.session_s,
            member.rebalance_s,
            member.client,
            member.host,
        )
        if not same:
            known.protocols = member.protocols
            self.subscription_changes += 1
        self._totals.add(known)
        self._heard(now, known)
        if same and (self.state == COMPLETING or (self.state == STABLE and known.id != self.leader)):
            self._answers.append((waiter, self._joined(known)))
            return
        if known.joining is not None:
            self._refuse(known.joining, Code.REBALANCE_IN_PROGRESS, known.id)
        known.joining = waiter
        self._prepare(now)

    def _prepare(self, now: float, *, fresh: bool = False) -> None:
        if self.state == PREPARING:
            if fresh and self._until < self._latest and self._delayed:
                self._until = min(now + self._delay_s, self._latest)
        else:
            for member in self.members.values():
                if member.syncing is not None:
                    self._answers.append((member.syncing, {"error_code": Code.REBALANCE_IN_PROGRESS}))
                    member.syncing = None
            self._latest = now + max((m.rebalance_s for m in self.members.values()), default=0.0)
            self._delayed = self.state == EMPTY and self._delay_s > 0
            self._until = min(now + self._delay_s, self._latest) if self._delayed else self._latest
            self.state = PREPARING
        self._complete_if_all(now)

    def _complete_if_all(self, now: float) -> None:
        if (
            self.state == PREPARING
            and not self._delayed
            and not self._pending
            and all(m.joining is not None for m in self.members.values())
        ):
            self._complete(now)

    def _complete(self, now: float) -> None:
        """The time to join is over, or all have."""
        for member in [m for m in self.members.values() if m.joining is None and m.instance is None]:
            self._drop(member)
        self._delayed = False
        self.generation += 1
        self.changed = True
        if not self.members:
            self.state, self.protocol, self.leader = EMPTY, "", ""
            return
        joined = [m for m in self.members.values() if m.joining is not None]
        if not joined:  # only static ones that have not come back: they get their session's time
            self.state = EMPTY
            return
        if self.leader not in self.members or self.members[self.leader].joining is None:
            self.leader = joined[0].id
        self.protocol = self._elect()
        self.state = COMPLETING
        self._until = now + max(m.rebalance_s for m in self.members.values())
        for member in self.members.values():
            if member.joining is not None:
                self._answers.append((member.joining, self._joined(member)))
                member.joining = None
                self._heard(now, member)

    def _elect(self) -> str:
        votes = dict[str, int]()
        common = {name for name, count in self._totals.known_by.items() if count == len(self.members)}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if name in common)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _joined(self, member: GroupMember) -> Fields:
        leads = member.id == self.leader
        return {
            "error_code": 0,
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.leader,
            "member_id": member.id,
            "members": [
                {"member_id": m.id, "group_instance_id": m.instance, "metadata": m.metadata(self.protocol)}
                for m in self.members.values()
            ]
            if leads
            else [],
        }

    # -- the rest of a generation --------------------------------------------------------------------------------------

    def check(self, member: str, instance: str | None, generation: int) -> Code:
        """Whether who says so is a member of this generation."""
        if instance is not None and instance in self._static and self._static[instance] != member:
            return Code.FENCED_INSTANCE_ID
        if member not in self.members:
            return Code.UNKNOWN_MEMBER_ID
        return Code.NONE if generation == self.generation else Code.ILLEGAL_GENERATION

    def sync(
        self,
        now: float,
        member: str,
        instance: str | None,
        generation: int,
        assignments: dict[str, bytes],
        waiter: Waiter,
    ) -> None:
        code = self.check(member, instance, generation)
        if not code and self.state == PREPARING:
            code = Code.REBALANCE_IN_PROGRESS
        if not code and self.state == EMPTY:
            code = Code.UNKNOWN_MEMBER_ID
        if code:
            self._answers.append((waiter, {"error_code": code}))
            return
        known = self.members[member]
        self._heard(now, known)
        if (
            member == self.leader
            and self.state != STABLE
            and not self._totals.has_room(
                sum(len(share) for each, share in assignments.items() if each in self.members),
                self.protocol_type,
                self.protocol,
            )
        ):
            self._answers.append((waiter, {"error_code": Code.GROUP_MAX_SIZE_REACHED}))
            return
        if self.state == STABLE:
            self._answers.append((waiter, self._synced(known)))
            return
        if known.syncing is not None:
            self._answers.append((known.syncing, {"error_code": Code.REBALANCE_IN_PROGRESS}))
        known.syncing = waiter
        if member == self.leader:
            for each in self.members.values():
                each.assignment = assignments.get(each.id, b"")
                if each.syncing is not None:
                    self._answers.append((each.syncing, self._synced(each)))
                    each.syncing = None
                    self._heard(now, each)
            self.state, self.changed = STABLE, True

    def _synced(self, member: GroupMember) -> Fields:
        return {
            "error_code": 0,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": member.assignment,
        }

    def heartbeat(self, now: float, member: str, instance: str | None, generation: int) -> Code:
        code = self.check(member, instance, generation)
        if code:
            return code
        if self.state == EMPTY:
            return Code.UNKNOWN_MEMBER_ID
        self._heard(now, self.members[member])
        return Code.REBALANCE_IN_PROGRESS if self.state == PREPARING else Code.NONE

    def committed(self, now: float, member: str, instance: str | None, generation: int) -> Code:
        """Whether an offset may be committed so; a member that commits is alive."""
        if generation < 0 and not member and not self.members:
            return Code.NONE
        code = self.check(member, instance, generation)
        if not code and self.state == COMPLETING:
            code = Code.REBALANCE_IN_PROGRESS
        if not code:
            self._heard(now, self.members[member])
        return code

    def leave(self, now: float, member: str, instance: str | None) -> Code:
        if instance is not None:
            known = self._static.get(instance)
            if known is None:
                return Code.UNKNOWN_MEMBER_ID
            if member and member != known:
                return Code.FENCED_INSTANCE_ID
            member = known
        if self._pending.pop(member, None) is not None:
            self._complete_if_all(now)
            return Code.NONE
        if member not in self.members:
            return Code.UNKNOWN_MEMBER_ID
        self._remove(now, self.members[member])
        return Code.NONE

    # -- time ----------------------------------------------------------------------------------------------------------

    def on_time(self, now: float, *, overslept: bool = False) -> None:
        """overslept: the coordinator stood still, since when it does not know; everybody has a whole session from now
        on.
        """
        if overslept:
            for member in self.members.values():
                self._heard(now, member)
            latest = now + max((member.session_s for member in self.members.values()), default=0.0)
            self._pending = {member: max(deadline, latest) for member, deadline in self._pending.items()}
            self._until, self._latest = max(self._until, latest), max(self._latest, latest)
            return
        for pending in [key for key, deadline in self._pending.items() if deadline <= now]:
            del self._pending[pending]
        for member in [
            m for m in self.members.values() if m.deadline <= now and m.joining is None and m.syncing is None
        ]:
            if member.id in self.members:
                self._remove(now, member)
        if self.state == PREPARING:
            if self._until <= now:
                if self._delayed and not self._pending:
                    self._delayed = False
                    self._until = self._latest
                    self._complete_if_all(now)
                elif self._delayed:
                    self._until, self._delayed = self._latest, False
                else:
                    self._complete(now)
            else:
                self._complete_if_all(now)
        elif self.state == COMPLETING and self._until <= now:
            late = [m for m in self.members.values() if m.syncing is None and m.instance is None]
            for member in late:
                self._drop(member)
            self._prepare(now)

    def next_deadline(self) -> float | None:
        deadlines = [m.deadline for m in self.members.values() if m.joining is None and m.syncing is None]
        deadlines += self._pending.values()
        if self.state in (PREPARING, COMPLETING):
            deadlines.append(self._until)
        return min(deadlines, default=None)

    def _heard(self, now: float, member: GroupMember) -> None:
        member.deadline = now + member.session_s

    def _remove(self, now: float, member: GroupMember) -> None:
        self._drop(member)
        if self.state in (STABLE, COMPLETING):
            self._prepare(now)
        else:
            self._complete_if_all(now)

    def _drop(self, member: GroupMember) -> None:
        for waiting in (member.joining, member.syncing):
            if waiting is not None:
                self._answers.append((waiting, {"error_code": Code.UNKNOWN_MEMBER_ID, "member_id": member.id}))
        del self.members[member.id]
        self._totals.drop(member)
        self.subscription_changes += 1
        if member.instance is not None and self._static.get(member.instance) == member.id:
            del self._static[member.instance]
        if self.leader == member.id:
            self.leader = next(iter(self.members), "")
        self.changed = True

    def _refuse(self, waiter: Waiter, code: Code, member: str) -> None:
        self._answers.append((waiter, {"error_code": code, "member_id": member}))

    def dissolve(self, code: Code) -> None:
        """It is served elsewhere now: all who wait are told."""
        for member in self.members.values():
            for waiting in (member.joining, member.syncing):
                if waiting is not None:
                    self._answers.append((waiting, {"error_code": code, "member_id": member.id}))
            member.joining = member.syncing = None

    def begin_again(self, now: float) -> None:
        """Its members are to join again."""
        if self.members:
            self._prepare(now)

    def expel(self) -> None:
        """Its members are out, as if each had left, and hear so when they ask for anything."""
        for member in list(self.members.values()):
            self._drop(member)
        self._pending.clear()
        self.generation += 1
        self.state, self.protocol, self.leader, self.changed = EMPTY, "", "", True

    # -- storing -------------------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """As of the last whole generation: who waits is not stored, and joins again."""
        members = [m.stored(assigned=self.state == STABLE) for m in self.members.values()]
        fields = [
            FORMAT,
            self.state,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            members,
            self.empty_since_ms,
        ]
        packed: bytes = msgpack.packb(fields)
        return packed

    def load(self, blob: bytes, now: float) -> None:
        """Its members have their whole session time again. Raises CorruptData."""
        self.subscription_changes += 1
        try:
            (
                number,
                self.state,
                self.generation,
                self.protocol_type,
                self.protocol,
                self.leader,
                members,
                self.empty_since_ms,
            ) = msgpack.unpackb(blob)
            if number != FORMAT:
                raise CorruptData(f"group {self.name}: format {number}; this version reads {FORMAT}")
            for member, instance, client, host, session_s, rebalance_s, protocols, assignment in members:
                known = GroupMember(
                    member,
                    instance,
                    client,
                    host,
                    session_s,
                    rebalance_s,
                    [(name, metadata) for name, metadata in protocols],
                )
                known.assignment = assignment
                self.members[member] = known
                self._totals.add(known)
                if instance is not None:
                    self._static[instance] = member
                self._heard(now, known)
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"group {self.name}: {error}") from error
        if (
            self.state in (PREPARING, COMPLETING) and self.members
        ):  # the generation was never handed out whole: they join again
            self.state = STABLE
            self._prepare(now)
        elif not self.members:
            self.state = EMPTY
