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

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from heliograph.model.topic_names import TopicName
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.groups.consumer_group import Group
from region_node.faces.kafka.groups.replicated_group_offsets import subscription_of

if TYPE_CHECKING:
    from region_node.faces.kafka.groups.coordinated_group import CoordinatedGroup

CONSUMERS = "consumer"
"""The protocol type whose members name topics; members of others say nothing of them."""


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

    def check(self, group: str, topics: Iterable[str]) -> None:
        """Whether somebody may join for these topics, or commit without being a member. Raises Refused: the client
        tries again later.
        """
        why = self._waits(self._parsed(topics), group)
        if why:
            raise Refused(Code.COORDINATOR_LOAD_IN_PROGRESS, why)

    def tick(self, held: CoordinatedGroup, now: float) -> bool:
        """Whether something of the group has changed."""
        group = held.group
        if not group.members:
            self.forget(group.name)
            return False
        known = self._topics.get(group.name)
        if known is None or known[:2] != (group.generation, len(held.offsets.rows)):
            topics = self._parsed(subscribed(group) | {topic for topic, _ in held.offsets.rows})
            known = self._topics[group.name] = group.generation, len(held.offsets.rows), topics
        if not self._waits(known[2], group.name):
            self._leaving.pop(group.name, None)
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

    def _parsed(self, names: Iterable[str]) -> list[TopicName]:
        found: list[TopicName] = []
        for name in sorted(names):
            try:
                found.append(self._name(name))
            except Refused:  # no topic can have that name, so nobody's leadership is about it
                continue
        return found


def subscribed(group: Group) -> set[str]:
    """Topics that a member of the group names in its subscription."""
    out: set[str] = set()
    for member in group.members.values() if group.protocol_type == CONSUMERS else ():
        out |= topics_of(member.metadata(group.protocol) or (member.protocols[0][1] if member.protocols else b""))
    return out


def may_name(metadata: bytes) -> int:
    """How many topics a subscription has at most: so many as it says, and as it has room for."""
    return max(0, min(int.from_bytes(metadata[2:6], "big"), (len(metadata) - 6) // 3))


def topics_of(metadata: bytes) -> set[str]:
    """Returns the topics in the subscription that a consumer joins with: i16 version, i32 count, then i16 size and name
    of each; reading ends where the bytes do, or at a name without any.
    """
    out: set[str] = set()
    at = 6
    for _ in range(may_name(metadata)):
        size = int.from_bytes(metadata[at : at + 2], "big")
        if not size:
            break
        out.add(metadata[at + 2 : at + 2 + size].decode("utf-8", "replace"))
        at += 2 + size
        if at >= len(metadata):
            break
    return out
