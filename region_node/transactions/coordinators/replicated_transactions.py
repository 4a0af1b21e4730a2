"""Arrivals: when what another region committed over several topics is shown here: once every topic has its part, so
that all show it at once.

Is: asking the owners of the other topics, being asked, and giving up. Isn't: what readers see meanwhile
(`replicator.log.transaction_buffer`), or the end of a transaction in a topic
(`region_node.transactions.participants.topic_participant`).
Invariants: a topic shows a held transaction when each topic that its marker names has its own marker stored in this
region, is not replicated here (as this region's policies or the source's say), takes nothing more (deleted,
terminated), had no part in it after all, or was waited for `wait_s`; nothing is kept beside the topics' logs, so
whoever loads a topic asks again, and waits for what is left of that time.
Source: docs/protocols/transactions.md, "Over several topics".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from heliograph.model.errors import HeliographError, NotFound
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Clock
from heliograph.wire.run import TxnId
from region_node.runtime.logged_tasks import logged_tasks
from replicator.log.transaction_buffer import Key, UnseenCommit, destination

if TYPE_CHECKING:
    from region_node.placement.ownership.broker_records import BrokerRecord
    from region_node.placement.ownership.ownership_service import Ownership
    from region_node.runtime.topic_ports import ViewPort
    from region_node.topics.serving.topic_service import TopicService
    from region_node.topics.topic import Topic

log = logging.getLogger("region_node.transactions")

EVERY_S = 0.2
SOON_S = 0.02
"""Between two rounds at least: many commits ask together."""
AGAIN_S = 5.0
"""Whoever loads a topic waits so long at least: the owners of the others may have to load them too."""
ASKED_MAX = 500
"""A question names so many transactions at most; the others are asked about in the next round."""
Abroad = tuple[int, int, int, int]
"""Names a transaction of another region: (region's number, region's epoch, coordinator, transaction). Incarnations
differ from topic to topic.
"""


class OtherBrokers(Protocol):
    """The region's other brokers, as coordinators and topics of this one ask them
    (`region_node.transactions.coordinators.transaction_calls`).
    """

    async def end(
        self,
        owner: BrokerRecord,
        topic: str,
        subscription: str | None,
        txn: TxnId,
        commit: bool,
        low: int,
        others: Sequence[str],
        again: bool,
    ) -> bool:
        """Ends a transaction in a topic or a subscription of that owner, as `Transactions.end_here` does. Raises as
        that does, and MetadataUnavailable.
        """
        ...

    async def arrived(self, owner: BrokerRecord, topic: str, by: str, wanted: Sequence[Abroad]) -> list[bool]:
        """Whether each transaction has ended in `topic`, at that owner; by: the topic that asks. Raises NotFound where
        the topic is not there, and MetadataUnavailable.
        """
        ...


def abroad(key: Key) -> Abroad:
    assert key[0] is not None
    return key[0][0], key[0][1], key[1], key[2]


class Arrivals:
    """Shows what other regions committed, at one broker. `shown_alone`: how often a topic showed its part of a
    transaction without waiting any longer for the others.
    """

    def __init__(
        self,
        *,
        topics: TopicService,
        ownership: Ownership,
        view: ViewPort,
        region: str,
        clock: Clock,
        wait_s: float,
        others: OtherBrokers | None = None,
    ) -> None:
        """others: None: topics of other brokers are not asked."""
        self._others = others
        self.shown_alone = 0
        self._topics, self._ownership, self._view, self._region, self._clock, self._wait_s = (
            topics,
            ownership,
            view,
            region,
            clock,
            wait_s,
        )
        self._waiting: dict[str, Topic] = {}
        self._tasks = logged_tasks()
        self._round_runs = self._again = self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._rests_until = 0.0

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    @property
    def held(self) -> int:
        """How many transactions wait, in all topics of this broker."""
        return sum(
            len(buffer.held) for topic in self._waiting.values() if (buffer := topic.transactions.buffer) is not None
        )

    def on_held(self, topic: Topic) -> None:
        """`topic` holds a transaction, or was loaded with one."""
        if not self._wait_s and (buffer := topic.transactions.buffer) is not None:
            for key in list(buffer.held):
                buffer.release(key)
            return
        self._waiting[topic.text] = topic
        self._soon()

    async def asked(self, topic: str, by: str, transactions: Sequence[Abroad]) -> list[bool]:
        """Whether each has ended in `topic`, of this broker, or never will. by: the topic that asks; it has them.

        Raises NotFound, NotOwner, what storage raises.
        """
        loaded = await self._topics.get(topic, create=False)
        buffer = loaded.transactions.buffer if loaded.transactional else None
        if buffer is None:
            return [loaded.terminated] * len(transactions)
        told = set(transactions)
        for key, held in list(buffer.held.items()):
            if abroad(key) in told:
                self._arrived(loaded, key, held.waits, by)
        return [loaded.terminated or buffer.has_ended_abroad(*one) for one in transactions]

    # -- rounds -------------------------------------------------------------------------------------------------------

    def _soon(self) -> None:
        if self._closed:
            return
        if self._round_runs:
            self._again = True
            return
        self._after(self._rests_until - asyncio.get_running_loop().time())

    def _after(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wait_s > 0:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        self._timer, self._round_runs = None, True
        self._tasks.spawn(self._round())

    async def _round(self) -> None:
        try:
            await asyncio.gather(
                *(self._question(topic, other, keys) for (topic, other), keys in self._questions().items())
            )
        finally:
            again, self._round_runs, self._again = self._again, False, False
            self._rests_until = asyncio.get_running_loop().time() + SOON_S
            if self._waiting and not self._closed:
                self._after(SOON_S if again else EVERY_S)

    def _questions(self) -> dict[tuple[Topic, str], list[Key]]:
        """By the topic that waits and the one that it waits for."""
        now, out = self._clock.monotonic(), dict[tuple["Topic", str], list[Key]]()
        for text, topic in list(self._waiting.items()):
            buffer = topic.transactions.buffer
            if topic.closed or buffer is None or not buffer.held:
                del self._waiting[text]
                continue
            for key, held in list(buffer.held.items()):
                if held.since is None:
                    held.since, held.waits = self._since(held, now), self._expected(held.waits)
                if not held.waits:
                    self._release(topic, key)
                    continue
                if now - held.since > self._wait_s:
                    self.shown_alone += 1
                    fields = {
                        "topic": text,
                        "transaction": f"{key[1]}:{key[2]}",
                        "missing": list(held.waits)[:10],
                        "waited_s": self._wait_s,
                    }
                    log.warning("transaction.shown_alone", extra=fields)
                    self._release(topic, key)
                    continue
                for other in list(held.waits):
                    if other == text or not self._comes_here(other):
                        self._arrived(topic, key, held.waits, other)
                    elif len(asked := out.setdefault((topic, other), [])) < ASKED_MAX:
                        asked.append(key)
        return out

    def _since(self, held: UnseenCommit, now: float) -> float:
        """What was shown before the topic came here, and is asked for again, does not hold everybody up for all of
        `wait_s`.
        """
        age_s = (self._clock.wall_ms() - held.at_ms) / 1000 if held.at_ms else 0.0
        return now - min(max(0.0, age_s), max(0.0, self._wait_s - AGAIN_S))

    def _expected(self, waits: Iterable[str]) -> dict[str, None]:
        """Without the topics that their region sends elsewhere only."""
        named = (destination(other) for other in waits)
        return {topic: None for topic, regions in named if regions is None or self._region in regions}

    def _comes_here(self, other: str) -> bool:
        """Whether a topic of that name may be replicated to this region, as far as the configuration of all regions
        says.
        """
        try:
            name = TopicName.parse(other)
        except HeliographError:  # no name, as far as this version knows
            return False
        policies, service = self._view.namespace(name.namespace), self._topics
        if policies is None or self._region not in (*policies.regions, *policies.allowed_regions):
            return False
        if service.tombstones and service.tombstone_of(name):
            return False
        own = self._view.topic_policies(str(name.partitioned))
        return own is None or self._region in (own.policies.get("replication") or (self._region,))

    async def _question(self, topic: Topic, other: str, keys: list[Key]) -> None:
        try:
            owner = await self._ownership.owner(other)
            wanted = [abroad(key) for key in keys]
            if owner is self._ownership.record:
                ended = await self.asked(other, topic.text, wanted)
            elif self._others is not None:
                ended = await self._others.arrived(owner, other, topic.text, wanted)
            else:
                return
        except NotFound:
            return  # it has not come here yet
        except (HeliographError, TimeoutError, OSError) as error:
            log.info("transaction.asked_in_vain", extra={"topic": topic.text, "other": other, "error": str(error)})
            return
        buffer = topic.transactions.buffer
        for key, there in zip(keys, ended, strict=False):
            if there and buffer is not None and (held := buffer.held.get(key)) is not None:
                self._arrived(topic, key, held.waits, other)

    def _arrived(self, topic: Topic, key: Key, waits: dict[str, None], other: str) -> None:
        waits.pop(other, None)
        if not waits:
            self._release(topic, key)

    def _release(self, topic: Topic, key: Key) -> None:
        buffer = topic.transactions.buffer
        if buffer is not None and not topic.closed:
            buffer.release(key)
            topic.shown_more()
