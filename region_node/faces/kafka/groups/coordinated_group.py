"""CoordinatedGroup: one group at its coordinator: its members, its offsets, and whose it is.

Is: values that travel together, and the owner's form as it is stored. Isn't: a rule of the protocol (`consumer_group`),
a right (`group_rights`), or storage (`group_coordinator`).
Source: docs/protocols/kafka.md, "Groups".
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from urllib.parse import quote

import msgpack

from heliograph.kv.metadata_store import ABSENT
from heliograph.model.configuration.acl_records import AclOperation
from heliograph.model.errors import CorruptData
from heliograph.model.topic_names import TopicName
from region_node.faces.kafka.groups.committed_offsets import Committed
from region_node.faces.kafka.groups.consumer_group import Group

OWNERS = "/kafka/group-owners/"
FORMAT = 1

Stamp = tuple[int, int, int]


def owner_key(group: str) -> str:
    return f"{OWNERS}{quote(group, safe='')}"


class ListedGroup(NamedTuple):
    """What is stored of a group, without loading it. owner: the role that made it; "": nobody wrote that down. topics:
    those that it has offsets of, as clients name them. loaded: it is in memory, too.
    """

    owner: str = ""
    topics: tuple[str, ...] = ()
    loaded: bool = False


class GroupAccess:
    """What is known of the rights to one group. `owner`: the role that made it, None where nobody knows; `stored`: the
    owner as it is stored.
    """

    __slots__ = ("allowed", "allowed_before", "by_host", "owner", "stamp", "stored", "topics")

    def __init__(self) -> None:
        self.owner: str | None = None
        self.stored: str | None = None
        self.topics: list[TopicName] = []
        self.stamp: Stamp = (-1, -1, -1)
        self.allowed: dict[tuple[tuple[str, ...], str, AclOperation], bool] = {}
        """(roles, address, what for) -> whether. Address "": all have the same answer."""
        self.allowed_before = self.allowed
        """Answers of earlier on, which go with the next ones that are too many."""
        self.by_host = False
        """Whether an ACL of a tenant that is concerned names a host."""

    def forget(self) -> None:
        """Every answer is to be found anew."""
        self.allowed = self.allowed_before = {}

    def keep(self, who: tuple[tuple[str, ...], str, AclOperation], answer: bool, answers_max: int) -> None:
        """At most that many are kept, and the half of them that came last in any case."""
        if len(self.allowed) >= answers_max // 2:
            self.allowed_before, self.allowed = self.allowed, {}
        self.allowed[who] = answer

    def dump(self) -> bytes:
        return stored_owner(self.owner)

    def load(self, blob: bytes) -> None:
        """Takes what `dump` made. Raises CorruptData."""
        self.owner = self.stored = owner_of(blob)


def stored_owner(owner: str | None) -> bytes:
    """The owner of a group, or of a producer, as it is stored."""
    packed: bytes = msgpack.packb([FORMAT, owner])
    return packed


def owner_of(blob: bytes) -> str:
    """The owner in what `stored_owner` made. Raises CorruptData."""
    try:
        number, owner = msgpack.unpackb(blob)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise CorruptData(f"owner of a group or a producer: {error}") from error
    if number != FORMAT or not isinstance(owner, str):
        raise CorruptData(f"owner of a group or a producer: format {number}; this version reads {FORMAT}")
    return owner


class CoordinatedGroup:
    """One group that is coordinated here."""

    __slots__ = ("__weakref__", "access", "counted_bytes", "group", "lock", "offsets", "payer", "version")

    def __init__(self, group: Group, offsets: Committed) -> None:
        self.group, self.offsets = group, offsets
        self.access = GroupAccess()
        self.version = ABSENT
        self.payer = ""
        """The role whose share of the broker it takes; "": none is known."""
        self.counted_bytes = 0
        """So much of that share its offsets take."""
        self.lock = asyncio.Lock()

    def pay_by(self, role: str) -> None:
        """It takes of that role's share from now on, unless it does of another one's already."""
        if not self.counted_bytes:
            self.payer = role

    def count(self, size_bytes: int) -> int:
        """Its offsets take so much. Returns how much more that is."""
        more, self.counted_bytes = size_bytes - self.counted_bytes, size_bytes
        return more

    @property
    def unused(self) -> bool:
        """Whether nothing is known of it that is not known of any name."""
        return self.version == ABSENT and self.empty

    @property
    def only_awaited(self) -> bool:
        """Whether nothing is known of it but ids that were given out, with which nobody has come back."""
        known = self.version != ABSENT or self.group.changed or self.lock.locked()
        return self.group.is_awaited and not (known or self.group.members or self.offsets.rows)

    @property
    def empty(self) -> bool:
        """Whether it has neither members nor offsets, and nothing of it is under way."""
        group = self.group
        waits = group.changed or self.lock.locked() or group.next_deadline() is not None
        return not (waits or group.members or self.offsets.rows)
