"""GroupCoordinator: the groups that this broker coordinates, from requests to stored generations.

Is: the shell around `consumer_group`: which broker coordinates which group, futures, the one timer, storing before
answering. Isn't: a rule of the protocol.
Invariants: a group is coordinated by the owner of the bundle that its name falls into, and by nobody else: a
coordinator that finds another version of the group stored gives it up; members hear of an assignment once it is stored,
so that they go on undisturbed under another coordinator; who waits for a group that is given up, or deleted, is told.
Bounds: a group of which nothing is known lives as long as a request that names it; AWAITED_MAX of which
only ids were given out; `groups_max` of the others, and `group_offsets_bytes_max` of their offsets, of both of which no
role has more than it leaves free.
Source: docs/protocols/kafka.md, "Groups".

    /kafka/groups/{group}        ->  Group.dump
    /kafka/group-owners/{group}  ->  GroupAccess.dump; beside the group, so that brokers that know of no owners read it
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

from heliograph.kv.metadata_store import ABSENT, Delete, Put, pages_under
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import HeliographError, VersionConflict
from heliograph.model.topic_names import TopicName
from heliograph.runtime.standstill import stood_still_s
from heliograph.runtime.throttle import RowPace
from heliograph.wire.kafka.message_codec import Fields
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.groups.committed_offsets import OFFSETS, Committed, group_prefix
from region_node.faces.kafka.groups.consumer_group import EMPTY, Group
from region_node.faces.kafka.groups.coordinated_group import OWNERS, CoordinatedGroup, ListedGroup, owner_key, owner_of
from region_node.faces.kafka.groups.group_deadlines import GroupDeadlines
from region_node.faces.kafka.groups.group_rights import nobodys
from region_node.faces.kafka.groups.group_shares import GroupShares
from region_node.runtime.shared_reads import SharedReads

if TYPE_CHECKING:
    from heliograph.kv.metadata_store import MetadataStore
    from heliograph.runtime.clock import Clock
    from heliograph.runtime.task_set import TaskSet
    from region_node.faces.kafka.cluster.kafka_cluster import Cluster
    from region_node.faces.kafka.groups.group_regions import GroupLeadership
    from region_node.faces.kafka.groups.replicated_group_offsets import GroupPositions
    from region_node.faces.kafka.kafka_settings import KafkaSettings
    from region_node.security.authentication.principal import Principal
    from region_node.security.authorization.security_service import Security

log = logging.getLogger("region_node.kafka")

GROUPS = "/kafka/groups/"
_GROUP_BYTES_MAX = 1 << 10
LOOKS_A_TICK = 2000
"""Groups without members that one tick looks at."""
AWAITED_MAX = 10_000
"""Groups of which only ids were given out: beyond so many those go of which that is longest ago, as if the ids' time
were over. Clients come back at once.
"""
ENDS_AT_ONCE = 32
"""Groups whose offsets, or which themselves, are deleted at once because nobody has used them: each is read for it."""


def group_key(group: str) -> str:
    return f"{GROUPS}{quote(group, safe='')}"


class CoordinatingBroker(Protocol):
    """`region_node.faces.kafka.session.kafka_broker.KafkaBroker`, as it coordinates groups."""

    @property
    def settings(self) -> KafkaSettings: ...

    @property
    def cluster(self) -> Cluster: ...

    @property
    def security(self) -> Security: ...

    @property
    def meta(self) -> MetadataStore: ...

    @property
    def tasks(self) -> TaskSet: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def expiry(self) -> Clock: ...

    @property
    def group_leadership(self) -> GroupLeadership: ...

    @property
    def positions(self) -> GroupPositions: ...


class GroupCoordinator:
    """`looks_a_tick`: so many groups without members one tick looks at. `awaited_max`: so many of which only ids were
    given out are kept.
    """

    def __init__(
        self, broker: CoordinatingBroker, *, looks_a_tick: int = LOOKS_A_TICK, awaited_max: int = AWAITED_MAX
    ) -> None:
        self._broker, self._looks_a_tick, self._awaited_max = broker, looks_a_tick, awaited_max
        self._held: dict[str, CoordinatedGroup] = {}
        self._unused = WeakValueDictionary[str, CoordinatedGroup]()
        self._loading: dict[str, asyncio.Future[CoordinatedGroup]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._deadlines = GroupDeadlines()
        self._round: list[str] = []
        self._joined: dict[str, None] = {}
        """Groups that have members, or had some at the last tick."""
        self._ending: set[str] = set()
        self._awaited: dict[str, CoordinatedGroup] = {}
        """Those of `_unused` of which ids were given out, the oldest first."""
        self.shares = GroupShares(broker.settings.groups_max, broker.settings.group_offsets_bytes_max)
        self._names = SharedReads[str, dict[str, ListedGroup]](self._read_names, lambda of_all: of_all)
        self._leaving: asyncio.Task[None] | None = None
        """Looks at the leaderships of groups that have members."""

    # -- which ---------------------------------------------------------------------------------------------------------

    def place(self, group: str) -> TopicName:
        """The name that decides who coordinates the group. Raises Refused."""
        if not group or len(group.encode()) > _GROUP_BYTES_MAX or any(ord(c) < 32 for c in group):
            raise Refused(Code.INVALID_GROUP_ID, "a group's name has 1 to 1024 bytes, and no control characters")
        tenant, _, namespace = self._broker.settings.namespace.partition("/")
        return TopicName("persistent", tenant, namespace, f"__group__{group}")

    async def held(self, group: str) -> CoordinatedGroup:
        """Raises Refused: this broker does not coordinate it, or cannot now."""
        place = self.place(group)
        if not self._broker.cluster.coordinates(place):
            self._give_up(group, Code.NOT_COORDINATOR)
            raise Refused(Code.NOT_COORDINATOR)
        found = self._held.get(group) or self._unused.get(group)
        if found is not None:
            return found
        loading = self._loading.get(group)
        if loading is None:
            loading = self._loading[group] = self._loop.create_future()
            self._broker.tasks.spawn(self._load(group, loading))
        return await asyncio.shield(loading)

    async def known(self, group: str) -> CoordinatedGroup:
        """As `held`, with the offsets that are stored where it is nobody's as far as was read: transactions and other
        regions write them past its coordinator. Raises as `held`, and what the metadata raises.
        """
        held = await self.held(group)
        if nobodys(held):
            await held.offsets.load()
            self.keep(held)
        return held

    def check_room(self, held: CoordinatedGroup, principal: Principal) -> None:
        """Comes before something of a group is kept. Raises Refused: there are too many, of that role or of all, and
        nothing is known of it.
        """
        if not (held.unused or held.only_awaited) or self._held.get(held.group.name) is held:
            return
        held.pay_by(principal.role if self._broker.security.rights.enabled else "")
        if not self.shares.has_place(held):
            raise Refused(
                Code.POLICY_VIOLATION,
                f"this broker coordinates {len(self._held)} groups, and takes no more of the role {held.payer!r} "
                "(broker.kafka.groups_max): delete groups that nobody uses, or use fewer names",
            )

    async def _load(self, group: str, loading: asyncio.Future[CoordinatedGroup]) -> None:
        settings = self._broker.settings
        try:
            made = CoordinatedGroup(
                Group(group, delay_s=settings.rebalance_delay_ms / 1000, members_max=settings.group_members_max),
                Committed(self._broker.meta, group),
            )
            stored = await self._broker.meta.get(group_key(group))
            if stored is not None:
                made.version = stored[1]
                made.group.load(stored[0], self._loop.time())
                leading = self._broker.cluster.leading
                if made.group.members and leading.is_from_before(settings.namespace, made.version):
                    made.group.expel()  # they have been members in another region since
            await made.offsets.load()
            owner = await self._broker.meta.get(owner_key(group))
            if owner is not None:
                made.access.load(owner[0])
                made.pay_by(made.access.owner or "")
            self._unused[group] = made
            loading.set_result(made)
            if self.keep(made):
                self.schedule(made)
        except HeliographError as error:
            log.warning("kafka.group_load_failed", extra={"group": group, "error": str(error)})
            loading.set_exception(Refused(Code.COORDINATOR_NOT_AVAILABLE, str(error)))
            loading.exception()
        finally:
            self._loading.pop(group, None)
            if not loading.done():
                loading.set_exception(Refused(Code.COORDINATOR_NOT_AVAILABLE))
                loading.exception()

    def keep(self, held: CoordinatedGroup) -> bool:
        """Keeps a group of which something is known by now. Returns whether it is kept; one that was given up never
        is.
        """
        name = held.group.name
        if self._unused.get(name) is held:
            self._awaited.pop(name, None)
            if held.only_awaited:
                self._awaited[name] = held
                if len(self._awaited) > self._awaited_max:
                    oldest = next(iter(self._awaited))
                    del self._awaited[oldest]
                    self._deadlines.forget(oldest)
            elif not held.unused:
                self._held[name] = self._unused.pop(name)
                self.shares.enter(held)
        if self._held.get(name) is not held:
            self.shares.count(held, 0)
            return False
        self.shares.count(held, held.offsets.size_bytes)
        if held.group.members:
            self._joined[name] = None
        return True

    def _give_up(self, group: str, code: Code) -> None:
        if group in self._held:
            self.shares.leave(self._held[group])
        found = self._held.pop(group, None) or self._unused.pop(group, None)
        self._awaited.pop(group, None)
        self._deadlines.forget(group)
        self._joined.pop(group, None)
        self._broker.group_leadership.forget(group)
        if found is not None:
            found.group.dissolve(code)
            self._deliver(found.group.take_answers())

    # -- what happened -------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self._loop.time()

    def waiter(self) -> asyncio.Future[Fields]:
        return self._loop.create_future()

    async def settle(self, held: CoordinatedGroup) -> None:
        """Stores what has changed, then answers those who waited for it."""
        if not self.keep(held) and self._unused.get(held.group.name) is not held:  # given up meanwhile
            self._refuse_all(held, [])
            return
        answers = held.group.take_answers()
        if not held.group.changed and not held.lock.locked():  # what is being stored is what they wait for
            self._deliver(answers)
            self.schedule(held)
            return
        async with held.lock:
            if self._held.get(held.group.name) is not held:  # given up while we waited: nothing of it is stored
                self._refuse_all(held, answers)
                return
            answers += held.group.take_answers()
            if held.group.changed:
                held.group.changed = False
                if held.group.state == EMPTY:
                    held.group.empty_since_ms = self._broker.clock.wall_ms()
                try:
                    await self._store(held)
                except VersionConflict:
                    self._refuse(answers, Code.NOT_COORDINATOR)
                    self._give_up(held.group.name, Code.NOT_COORDINATOR)
                    return
                except HeliographError as error:
                    log.warning("kafka.group_not_stored", extra={"group": held.group.name, "error": str(error)})
                    self._refuse(answers, Code.COORDINATOR_NOT_AVAILABLE)
                    self._give_up(held.group.name, Code.COORDINATOR_NOT_AVAILABLE)
                    return
        self._deliver(answers)
        self.schedule(held)

    async def _store(self, held: CoordinatedGroup) -> None:
        key, value, owner = group_key(held.group.name), held.group.dump(), held.access.owner
        if owner is None or owner == held.access.stored:
            held.version = await self._broker.meta.put(key, value, expected=held.version)
            return
        ops = [Put(key, value, held.version), Put(owner_key(held.group.name), held.access.dump())]
        held.version = await self._broker.meta.txn(ops)
        held.access.stored = owner

    def _refuse_all(self, held: CoordinatedGroup, answers: list[tuple[asyncio.Future[Fields], Fields]]) -> None:
        """The group was given up: whoever waits asks again."""
        held.group.dissolve(Code.COORDINATOR_NOT_AVAILABLE)
        self._refuse(answers + held.group.take_answers(), Code.COORDINATOR_NOT_AVAILABLE)

    def _refuse(self, answers: list[tuple[asyncio.Future[Fields], Fields]], code: Code) -> None:
        self._deliver(
            [(waiter, {"error_code": code, "member_id": fields.get("member_id", "")}) for waiter, fields in answers]
        )

    @staticmethod
    def _deliver(answers: list[tuple[asyncio.Future[Fields], Fields]]) -> None:
        for waiter, fields in answers:
            if not waiter.done():
                waiter.set_result(fields)

    # -- time ----------------------------------------------------------------------------------------------------------

    def schedule(self, of: CoordinatedGroup | None = None) -> None:
        """One timer for all groups. of: whose deadline may be nearer than the timer."""
        spared = self._spare()
        if of is not None:
            self._deadlines.tell(of.group.name, of.group.next_deadline())
        deadline = self._deadlines.nearest()
        due = None if deadline is None else max(deadline, self._loop.time()) + 0.001
        if self._timer is not None:
            if not spared and due is not None and due >= self._due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._due = due
            self._timer = self._loop.call_at(due, self._on_timer)

    def _spare(self) -> bool:
        """What members have said while this broker stood still lies unread. Returns whether it did."""
        now = self._loop.time()
        if self._timer is None or not stood_still_s(self._due, now):
            return False
        for held in (*self._held.values(), *self._awaited.values()):
            held.group.on_time(now, overslept=True)
        return True

    def _on_timer(self) -> None:
        self._spare()
        self._timer = None
        now = self._loop.time()
        for name in self._deadlines.due(now):
            held = self._held.get(name) or self._awaited.get(name)
            if held is None:
                continue
            deadline = held.group.next_deadline()
            if deadline is None or deadline > now:
                self._deadlines.tell(name, deadline)
            else:
                held.group.on_time(now)
                self._broker.tasks.spawn(self.settle(held))
        self.schedule()

    def tick(self) -> None:
        """Groups that are another broker's by now, offsets that nobody has committed for long, and groups that have
        been empty for as long; of very many groups without members some, in turn.
        """
        settings, now_ms = self._broker.settings, self._broker.expiry.wall_ms()
        if not self._round:
            self._round = list(self._held)
        empty = [name for name in self._round[: self._looks_a_tick] if name not in self._joined]
        self._round = self._round[self._looks_a_tick :]
        with_members = list[CoordinatedGroup]()
        for name in (*self._joined, *empty):
            held = self._held.get(name)
            if held is None:
                continue
            if held.group.members:
                with_members.append(held)
            else:
                self._joined.pop(name, None)
                self._broker.group_leadership.forget(name)
            if not self._broker.cluster.coordinates(self.place(name)):
                self._give_up(name, Code.NOT_COORDINATOR)
            elif held.unused:
                self.shares.leave(held)
                self._unused[name] = self._held.pop(name)
            elif name in self._ending or len(self._ending) >= ENDS_AT_ONCE:
                continue
            elif held.group.state == EMPTY and settings.offsets_retention_s >= 0:
                before = now_ms - int(settings.offsets_retention_s * 1000)
                old = [
                    key for key, row in held.offsets.rows.items() if max(row.at_ms, held.group.empty_since_ms) < before
                ]
                if old:
                    self._ending.add(name)
                    self._broker.tasks.spawn(self._expire(held, old))
                elif held.empty and held.group.empty_since_ms < before:
                    self._ending.add(name)
                    self._broker.tasks.spawn(self._end(held))

        if with_members and (self._leaving is None or self._leaving.done()):
            self._leaving = self._broker.tasks.spawn(self._look_at_leaderships(with_members))

    async def _look_at_leaderships(self, groups: list[CoordinatedGroup]) -> None:
        """Lets members go whose group works in another region by now."""
        pace = RowPace()
        for held in groups:
            await pace.row()
            if self._held.get(held.group.name) is not held:
                self._broker.group_leadership.forget(held.group.name)
            elif await self._broker.group_leadership.tick(held, self.now):
                self._broker.tasks.spawn(self.settle(held))

    async def _expire(self, held: CoordinatedGroup, old: list[tuple[str, int]]) -> None:
        try:
            await held.offsets.delete(old)
            self.keep(held)
            log.info("kafka.offsets_expired", extra={"group": held.group.name, "partitions": len(old)})
        except HeliographError as error:  # the next tick tries again
            log.warning("kafka.offsets_not_expired", extra={"group": held.group.name, "error": str(error)})
        finally:
            self._ending.discard(held.group.name)

    async def _end(self, held: CoordinatedGroup) -> None:
        """Deletes a group that nobody uses. Where others have written offsets past its coordinator it stays."""
        name = held.group.name
        try:
            async with held.lock:  # who joins meanwhile waits for it, and then asks again
                await held.offsets.load()
                if held.group.members or held.offsets.rows or self._held.get(name) is not held:
                    return
                await self._broker.meta.txn([Delete(group_key(name), held.version), Delete(owner_key(name))])
                self._give_up(name, Code.COORDINATOR_NOT_AVAILABLE)
            log.info("kafka.group_expired", extra={"group": name})
        except VersionConflict:
            self._give_up(name, Code.NOT_COORDINATOR)
        except HeliographError as error:  # the next tick tries again
            log.warning("kafka.group_not_expired", extra={"group": name, "error": str(error)})
        finally:
            self._ending.discard(name)

    def members_of(self, group: str) -> int:
        """Counts the members of a group that is coordinated here; 0 for any other."""
        held = self._held.get(group)
        return 0 if held is None else len(held.group.members)

    def __len__(self) -> int:
        return len(self._held)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for name in list(self._held):
            self._give_up(name, Code.NOT_COORDINATOR)

    # -- all of them ---------------------------------------------------------------------------------------------------

    async def names(self) -> dict[str, ListedGroup]:
        """Groups that this broker coordinates, also those that nobody has asked for since it does. Who asks while they
        are read shares the next read. Raises what the metadata raises.
        """
        return await self._names.of("")

    async def _read_names(self, _of_all: str) -> dict[str, ListedGroup]:
        found, elsewhere, pace = dict[str, ListedGroup](), set[str](), RowPace()
        for prefix in (GROUPS, OFFSETS, OWNERS):
            async for rows in pages_under(self._broker.meta, prefix):
                for key, value, _ in rows:
                    await pace.row()
                    group, _, behind = key.removeprefix(prefix).partition("/")
                    name = unquote(group)
                    if name in elsewhere or (name not in found and prefix == OWNERS):  # what is left of one, alone
                        continue
                    if name not in found and not self._broker.cluster.coordinates(self.place(name)):
                        elsewhere.add(name)
                        continue
                    known = found.setdefault(name, ListedGroup(loaded=name in self._held or name in self._unused))
                    if prefix == OWNERS:
                        found[name] = known._replace(owner=readable(owner_of, key, value) or "")
                    elif prefix == OFFSETS and (topic := unquote(behind.partition("/")[0])) not in known.topics[-1:]:
                        found[name] = known._replace(topics=(*known.topics, topic))
        return found

    async def delete(self, group: str) -> None:
        """Deletes an empty group and its offsets. Raises Refused: it has members, is not known here, or other regions
        have positions of it too.
        """
        held = await self.held(group)
        async with held.lock:  # who joins meanwhile waits for it, and then asks again
            if held.group.members:
                raise Refused(Code.NON_EMPTY_GROUP)
            await held.offsets.load()  # positions come from other regions, and go with their subscriptions
            if held.version == ABSENT and not held.offsets.rows:
                raise Refused(Code.GROUP_ID_NOT_FOUND)
            if self._broker.positions.had_elsewhere(group, dict.fromkeys(topic for topic, _ in held.offsets.rows)):
                self.keep(held)
                raise Refused(Code.POLICY_VIOLATION)
            await held.offsets.delete_all()
            await self._broker.meta.txn([Delete(group_key(group)), Delete(owner_key(group))])
            self._give_up(group, Code.COORDINATOR_NOT_AVAILABLE)

    async def forget_topic(self, name: TopicName) -> None:
        """A topic is deleted: no group keeps offsets of it, whoever coordinates it."""
        spellings = self._broker.cluster.spellings(name)  # earlier versions kept them by what clients wrote
        for kafka in spellings:
            for group in await self._broker.positions.groups_of(kafka):
                prefix = f"{group_prefix(group)}{quote(kafka, safe='')}/"
                for key in [key async for rows in pages_under(self._broker.meta, prefix) for key, _, _ in rows]:
                    await self._broker.meta.delete(key)
        for held in (*self._held.values(), *self._unused.values()):
            held.offsets.forget([row for row in held.offsets.rows if row[0] in spellings])
            self.keep(held)

    async def forget_partition(self, name: TopicName, index: int) -> None:
        """It begins anew, or its topic is deleted: no group keeps an offset of it. Raises what the metadata raises."""
        keys = [(kafka, index) for kafka in self._broker.cluster.spellings(name)]
        for key in keys:
            for group in await self._broker.positions.groups_of(key[0]):
                committed = Committed(self._broker.meta, group)
                await committed.read([key])
                await committed.delete([key])
        for held in (*self._held.values(), *self._unused.values()):
            held.offsets.forget(keys)
            self.keep(held)
