"""GroupLeadership: groups in namespaces whose subscriptions are active in one region at a time, and only in that one.

Is: who may not join or commit here now, and getting members out when their group's leadership has gone. Isn't: which
region leads (`region_node.dr.leadership.subscription_leadership`), or a rule of the groups' protocol
(`consumer_group`).
Invariants: nobody joins where the leadership is another region's, and nobody who is no member commits there; members
that were in when the leadership went are told to join again, so that they commit what they have done, and are out a
tick later, whatever they do meanwhile.
Source: docs/protocols/kafka.md, "Groups in several regions".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import RowPace
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.groups.consumer_group import Group
from region_node.faces.kafka.groups.replicated_group_offsets import subscription_of

if TYPE_CHECKING:
    from region_node.faces.kafka.groups.coordinated_group import CoordinatedGroup

CONSUMERS = "consumer"
"""The protocol type whose members name topics; members of others say nothing of them."""
ROWS_A_TOPIC = 4
"""Parsing a topic's name, or asking for it, takes as long as so many rows (`RowPace`)."""
_TOPICS_AT_ONCE = 64


class WaitingSubscriptions(Protocol):
    """`region_node.dr.leadership.subscription_leadership.SubscriptionLeadership`, as groups ask it."""

    def waits(self, topics: Iterable[TopicName], subscription: str) -> str:
        """Why nobody may work on the subscription of these topics (without partitions) here now; "": they may."""
        ...


class GroupLeadership:
    """Keeps one broker's groups from working while another region leads. `leadership`: None: every region does."""

    def __init__(self, name: Callable[[str], TopicName], leadership: WaitingSubscriptions | None = None) -> None:
        """name: of a topic that a client names. Raises Refused."""
        self._name, self._leadership = name, leadership
        self._leaving: dict[str, None] = {}
        """Groups whose members were told to join again."""
        self._topics: dict[str, tuple[int, int, list[TopicName]]] = {}
        """Group -> (its generation, how many offsets it had committed, the topics that its leadership is about)."""

    async def check(self, group: str, topics: Iterable[str]) -> None:
        """Whether somebody may join for these topics, or commit without being a member. Raises Refused: the client
        tries again later.
        """
        why = await self._why(await parsed(topics, self._name), group)
        if why:
            raise Refused(Code.COORDINATOR_LOAD_IN_PROGRESS, why)

    async def _why(self, topics: list[TopicName], group: str) -> str:
        """Why it waits; every topic is asked for, as who asks is noted for each."""
        told, pace = "", RowPace()
        for first in range(0, len(topics), _TOPICS_AT_ONCE):
            why = self._waits(topics[first : first + _TOPICS_AT_ONCE], group)
            told = told or why
            await pace.rows(_TOPICS_AT_ONCE * ROWS_A_TOPIC)
        return told

    async def tick(self, held: CoordinatedGroup, now: float) -> bool:
        """Whether something of the group has changed."""
        group = held.group
        if not group.members:
            self.forget(group.name)
            return False
        known = self._topics.get(group.name)
        if known is None or known[:2] != (group.generation, len(held.offsets.rows)):
            of = group.generation, len(held.offsets.rows)
            committed = dict.fromkeys(topic for topic, _ in held.offsets.rows)
            known = *of, await parsed({**await subscribed(group), **committed}, self._name)
            if group.members:
                self._topics[group.name] = known
        if not await self._why(known[2], group.name):
            self._leaving.pop(group.name, None)
            return False
        if not group.members:  # they have left meanwhile
            self.forget(group.name)
            return False
        if group.name not in self._leaving:
            self._leaving[group.name] = None
            group.begin_again(now)
        else:
            del self._leaving[group.name]
            group.expel()
        return True

    def _waits(self, topics: list[TopicName], group: str) -> str:
        """Why the group may not work on these topics here now; "": it may."""
        return "" if self._leadership is None else self._leadership.waits(topics, subscription_of(group))

    def forget(self, group: str) -> None:
        """It has no members, or another broker coordinates it."""
        self._leaving.pop(group, None)
        self._topics.pop(group, None)


async def parsed(names: Iterable[str], name_of: Callable[[str], TopicName]) -> list[TopicName]:
    """The names of topics; what no topic can be called is left out: nobody's rights or leadership are about it."""
    found, pace = list[TopicName](), RowPace()
    for name in names:
        await pace.rows(ROWS_A_TOPIC)
        try:
            found.append(name_of(name))
        except Refused:
            continue
    return found


async def subscribed(group: Group) -> dict[str, None]:
    """Topics that a member of the group names in its subscription."""
    members = list(group.members.values()) if group.protocol_type == CONSUMERS else []
    return await named_in(
        dict.fromkeys(m.metadata(group.protocol) or (m.protocols[0][1] if m.protocols else b"") for m in members)
    )


async def named_in(subscriptions: Iterable[bytes]) -> dict[str, None]:
    """Topics that these subscriptions name, in their order."""
    found, pace = dict[str, None](), RowPace()
    for metadata in subscriptions:
        await pace.row()
        for topic in topics_of(metadata):
            found[topic] = None
            await pace.row()
    return found


def may_name(metadata: bytes) -> int:
    """How many topics a subscription has at most: so many as it says, and as it has room for."""
    return max(0, min(int.from_bytes(metadata[2:6], "big"), (len(metadata) - 6) // 3))


def topics_of(metadata: bytes) -> Iterator[str]:
    """Yields the topics in the subscription that a consumer joins with: i16 version, i32 count, then i16 size and name
    of each; reading ends where the bytes do, or at a name without any.
    """
    at = 6
    for _ in range(may_name(metadata)):
        size = int.from_bytes(metadata[at : at + 2], "big")
        if not size:
            break
        yield metadata[at + 2 : at + 2 + size].decode("utf-8", "replace")
        at += 2 + size
        if at >= len(metadata):
            break
