"""Transactions: all coordinators and participants of one broker.

Is: which coordinators are here, loading and leaving them, this broker's topics as participants, the way to those of
other brokers.
Isn't: the rules of a transaction (`coordinator`, `stored_coordinator`), frames, or HTTP.
Invariants: a coordinator runs only where the topic that names it is owned (its owner is found as that of any topic);
one that moves is loaded by its new owner, which fences the old one; a coordinator that has transactions runs somewhere
at all times, so that their time ends.
Source: docs/protocols/transactions.md.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from heliograph.kv.metadata_store import MetadataStore, check_key
from heliograph.model.configuration.replication_routes import targets
from heliograph.model.errors import HeliographError, NotAllowed, NotFound, NotOwner
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Clock, Rng
from heliograph.wire.run import TxnId
from local_meta import keys
from region_node.runtime.logged_tasks import logged_tasks
from region_node.transactions.coordinators.coordinator import TransactionStatus
from region_node.transactions.coordinators.coordinator_topics import ASSIGN, NAMESPACE
from region_node.transactions.coordinators.named_transactions import NamedTransactions
from region_node.transactions.coordinators.replicated_transactions import Arrivals, OtherBrokers
from region_node.transactions.coordinators.settings import TransactionSettings
from region_node.transactions.coordinators.stored_coordinator import COORDINATORS, StoredCoordinator, as_stored
from region_node.transactions.participants.transaction_errors import NoCoordinator, TransactionFull
from replicator.log.transaction_buffer import only_to

if TYPE_CHECKING:
    from region_node.placement.ownership.broker_records import BrokerRecord
    from region_node.placement.ownership.ownership_service import Ownership
    from region_node.topics.serving.topic_service import TopicService

log = logging.getLogger("region_node.transactions")

_SURELY_STORED = 256
"""A topic whose name has as many characters has keys that the metadata takes."""


class Transactions:
    """`loaded`: the coordinators that run here."""

    def __init__(
        self,
        *,
        meta: MetadataStore,
        topics: TopicService,
        ownership: Ownership,
        clock: Clock,
        rng: Rng,
        settings: TransactionSettings | None = None,
        others: OtherBrokers | None = None,
        named: NamedTransactions | None = None,
    ) -> None:
        """others: None: what other brokers own takes part in nothing.
        named: what is not forgotten when it has ended; None: nobody names any.
        """
        self.named, self._others = named, others
        self.settings = settings or TransactionSettings()
        self.arrivals = Arrivals(
            topics=topics,
            ownership=ownership,
            view=topics.view,
            region=ownership.region,
            clock=clock,
            wait_s=self.settings.topics_wait_s,
            others=others,
        )
        if topics.held is not None:
            topics.held.follow(self.arrivals.on_held)
        self.loaded: dict[int, StoredCoordinator] = {}
        self._meta, self._topics, self._ownership, self._view, self._clock, self._rng = (
            meta,
            topics,
            ownership,
            topics.view,
            clock,
            rng,
        )
        self._region = ownership.region
        self._loading: dict[int, asyncio.Future[StoredCoordinator]] = {}
        self._used: dict[int, None] = {}
        self._tasks = logged_tasks()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._ticking = self._closed = False
        self._stop_watch = meta.watch(COORDINATORS, self._on_coordinator)

    async def close(self) -> None:
        self._closed = True
        await self.arrivals.close()
        self._stop_watch()
        if self._timer is not None:
            self._timer.cancel()
        loaded, self.loaded = self.loaded, {}
        for coordinator in loaded.values():
            await coordinator.close()
        await self._tasks.close()

    # -- coordinators -------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return self.settings.coordinators

    def coordinator_of(self, key: str) -> int:
        """One coordinator for each key, the same at any time."""
        return zlib.crc32(key.encode()) % self.count

    def topic_of(self, number: int) -> str:
        """The topic whose owner has that coordinator."""
        return f"{ASSIGN}-partition-{number}"

    async def coordinator(self, number: int) -> StoredCoordinator:
        """Raises NoCoordinator where another broker has it, or it could not be loaded."""
        if self._closed or not 0 <= number < self.count:
            raise NoCoordinator(f"there is no transaction coordinator {number} here")
        if not self._ownership.owns(self.topic_of(number)):
            raise NoCoordinator(
                f"this broker does not have transaction coordinator {number}: look up {self.topic_of(number)}"
            )
        found = self.loaded.get(number)
        if found is not None and found.failed is None:
            return found
        loading = self._loading.get(number)
        if loading is None:
            loading = self._loading[number] = self._loop.create_future()
            self._tasks.spawn(self._load(number, loading))
        return await asyncio.shield(loading)

    async def _load(self, number: int, loading: asyncio.Future[StoredCoordinator]) -> None:
        try:
            if (old := self.loaded.pop(number, None)) is not None:
                await old.close()
            made = await StoredCoordinator.load(number, self._meta, self, self._clock, self._rng, self.settings.limits)
            if self._closed or not self._ownership.owns(self.topic_of(number)):
                await made.close()
                raise NoCoordinator(f"transaction coordinator {number} has moved: look it up again")
            self.loaded[number] = made
            loading.set_result(made)
        except HeliographError as error:
            failed = (
                error
                if isinstance(error, NoCoordinator)
                else NoCoordinator(f"transaction coordinator {number} cannot be loaded: {error}")
            )
            loading.set_exception(failed)
            loading.exception()
        finally:
            self._loading.pop(number, None)
            if not loading.done():
                loading.set_exception(NoCoordinator("the broker is stopping"))
                loading.exception()

    # -- a transaction ------------------------------------------------------------------------------------------------

    async def begin(self, number: int, ttl_ms: int, owner: str = "") -> TxnId:
        """Raises NoCoordinator, NotAllowed (too many are open)."""
        return await (await self.coordinator(number)).begin(ttl_ms, owner)

    def check_participants(self, count: int) -> None:
        """Raises TransactionFull where no transaction may have so many topics and subscriptions."""
        if count > (count_max := self.settings.limits.participants_max):
            raise TransactionFull(
                f"{count} topics or subscriptions; at most {count_max} may take part in a transaction: use fewer of "
                "them in one, or raise broker.transactions.limits.participants_max"
            )

    async def add_partitions(self, txn: TxnId, topics: list[str], owner: str | None = None) -> None:
        """topics: their names, kept and shown as a client gives them. Raises NoCoordinator, NoSuchTransaction,
        TransactionState, NotAllowed (also where no topic can have such a name).
        """
        for topic in topics:
            _full(topic)
        await (await self.coordinator(txn[0])).join(txn[1], topics, [], owner)

    async def add_subscriptions(self, txn: TxnId, pairs: list[tuple[str, str]], owner: str | None = None) -> None:
        """pairs: (name of a topic, subscription). Raises as `add_partitions`."""
        for topic, _ in pairs:
            _full(topic)
        await (await self.coordinator(txn[0])).join(txn[1], [], pairs, owner)

    async def end(self, txn: TxnId, *, commit: bool, owner: str | None = None) -> None:
        """Returns when every participant has it durably; the same again succeeds. Raises NoCoordinator,
        NoSuchTransaction, TransactionState.
        """
        await (await self.coordinator(txn[0])).end(txn[1], commit=commit, owner=owner)

    async def check_part(self, txn: TxnId, owner: str, topic: str, subscription: str | None = None) -> None:
        """Whether the topic, or its subscription, takes part in a transaction of that role that is open, as it is
        stored. Whatever else is published or acknowledged in a transaction is ended by nobody. Raises NotAllowed, and
        what the metadata raises.
        """
        found, name = await as_stored(self._meta, txn), f"transaction {txn[0]}:{txn[1]}"
        if found is None or found.owner != owner:
            raise NotAllowed(
                f"{name} is not known: it was never begun, has ended, or is somebody else's: begin another"
            )
        if found.status is not TransactionStatus.OPEN:
            raise NotAllowed(f"{name} is {found.status.name}: begin another one")
        if subscription is None:
            part = any(each in found.partitions for each in _spellings(topic))
        else:
            part = any((each, subscription) in found.subscriptions for each in _spellings(topic))
        if not part:
            what = topic if subscription is None else f"{topic}'s subscription {subscription!r}"
            raise NotAllowed(f"{what} is not in {name}: add it first, as clients do")

    # -- participants -------------------------------------------------------------------------------------------------

    async def end_partition(
        self, topic: str, txn: TxnId, *, commit: bool, low: int, others: Sequence[str] = (), again: bool = False
    ) -> bool:
        """Ends it in a topic of this region, wherever that is owned. Raises NotFound, TransactionState, and what may be
        tried again.
        """
        topic, owner = await self._owner(topic)
        others = _possible(others)
        if owner is not self._ownership.record:
            return await self._at(owner, topic, None, txn, commit, low, others, again)
        return await self.end_here(topic, None, txn, commit=commit, low=low, others=others, again=again)

    async def end_subscription(self, topic: str, subscription: str, txn: TxnId, *, commit: bool, low: int) -> None:
        """The same of a subscription."""
        topic, owner = await self._owner(topic)
        if owner is not self._ownership.record:
            await self._at(owner, topic, subscription, txn, commit, low)
        else:
            await self.end_here(topic, subscription, txn, commit=commit, low=low)

    async def _owner(self, topic: str) -> tuple[str, BrokerRecord]:
        """Returns its full name, and who owns it. Raises NotFound where it cannot be there: versions before took names
        that no topic has, and a region may cease to serve a namespace. NotOwner where the topic is kept all the same:
        the region may come back to the namespace, and this broker's view may be an old one.
        """
        try:
            topic = _full(topic)
        except NotAllowed as error:
            raise NotFound(str(error)) from error
        try:
            return topic, await self._ownership.owner(topic)
        except (NotAllowed, NotFound) as error:
            deleted = self._topics.tombstone_of(TopicName.parse(topic))
            if not deleted and await self._meta.get(keys.managed_ledger(topic)) is not None:
                raise NotOwner(f"{topic} is kept here and has no owner now: {error}") from error
            raise NotFound(str(error)) from error

    async def _at(
        self,
        owner: BrokerRecord,
        topic: str,
        subscription: str | None,
        txn: TxnId,
        commit: bool,
        low: int,
        others: Sequence[str] = (),
        again: bool = False,
    ) -> bool:
        if self._others is None:
            raise NotOwner(f"{topic} is owned by broker {owner.broker}, and this one knows no way there")
        return await self._others.end(owner, topic, subscription, txn, commit, low, others, again)

    async def end_here(
        self,
        topic: str,
        subscription: str | None,
        txn: TxnId,
        *,
        commit: bool,
        low: int,
        others: Sequence[str] = (),
        again: bool = False,
    ) -> bool:
        """In a topic of this broker; False: it is terminated, and has no part in it. Raises NotOwner, NotFound,
        TransactionState, and what storage raises.
        """
        loaded = await self._topics.get(topic, create=False)
        if subscription is None:
            named = [name for other in others if (name := self._as_sent(other))]
            return await loaded.transactions.end(txn, commit=commit, low=low, others=named, again=again)
        found = loaded.subscriptions.get(subscription)
        if found is None:
            raise NotFound(f"{topic} has no subscription {subscription!r} any more")
        found.transactions.end(txn, commit=commit, low=low)
        await found.transactions.stored()
        return True

    def _as_sent(self, topic: str) -> str:
        """How a marker names a topic to other regions: with those that it goes to, where policies choose among them;
        "": to none.
        """
        name = TopicName.parse(topic)
        values, namespace = self._topics.policies.of(name).values, self._view.namespace(name.namespace)
        wanted, routes, topology = (
            values.get("replication"),
            values.get("replicationRoutes"),
            values.get("replicationTopology"),
        )
        if (not wanted and routes is None) or (
            topology is not None and topology["kind"] != "mesh"
        ):  # where this region sends nothing, another may
            return topic
        regions = targets(routes, self._region, wanted or (namespace.regions if namespace is not None else ()))
        return only_to(topic, regions) if regions else ""

    # -- as time goes by ----------------------------------------------------------------------------------------------

    def _on_coordinator(self, key: str, value: bytes | None, _version: int) -> None:
        """A coordinator was used in this region: from now on it must run somewhere."""
        number = int(key.removeprefix(COORDINATORS))
        if value is not None:
            self._used[number] = None
            if self._timer is None and not self._closed:
                self._timer = self._loop.call_later(self.settings.tick_s, self._tick)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self.settings.tick_s, self._tick)
        if not self._ticking:
            self._ticking = True
            self._tasks.spawn(self._look_after())

    async def _look_after(self) -> None:
        try:
            for number in list(self._used):
                try:
                    await self._look_after_one(number)
                except HeliographError as error:
                    log.info("coordinator.waits", extra={"coordinator": number, "error": str(error)})
        finally:
            self._ticking = False

    async def _look_after_one(self, number: int) -> None:
        ownership, topic = self._ownership, self.topic_of(number)
        if ownership.owns(topic):
            asked_for = self.named.asked_for if self.named is not None else None
            await (await self.coordinator(number)).tick(asked_for)
            return
        if (old := self.loaded.pop(number, None)) is not None:
            await old.close()
        table = ownership.bundles(NAMESPACE)
        if number < self.count and table is not None and ownership.present_owner(NAMESPACE, table.of(topic)) is None:
            await ownership.owner(topic)  # whoever had it is gone, and nobody has looked it up since

    def metadata(self, txn: TxnId) -> Any:
        """What is known here of a transaction; None where this broker does not have its coordinator."""
        found = self.loaded.get(txn[0])
        return None if found is None else found.core.open.get(txn[1]) or found.core.final.get(txn[1])


def _full(topic: str) -> str:
    """The whole name of a topic, as its broker knows it. Raises NotAllowed where none can have it."""
    full = str(TopicName.parse(topic))
    if len(full) > _SURELY_STORED:
        check_key(keys.managed_ledger(full))
    return full


def _possible(topics: Iterable[str]) -> list[str]:
    """The whole names of those that can be there: versions before took others as well."""
    full = []
    for topic in topics:
        with suppress(NotAllowed):
            full.append(_full(topic))
    return full


def _spellings(topic: str) -> list[str]:
    """A topic's whole name, and what a client may have given in its place."""
    domain, _, rest = topic.partition("://")
    return [topic, rest, rest.removeprefix("public/default/")] if domain == "persistent" else [topic]
