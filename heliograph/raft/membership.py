"""Membership: the configurations of a log, and the changes of one member at a time that make the next one.

Is: which configuration stands at which index, with the log it goes back; what adding, promoting, or removing a member
makes of one. Isn't: when a change may be made (`leader`), or connections between members (only where each is).
Invariants: a configuration holds from its entry on, committed or not; the voters of two neighbours differ in one member
at most, so that any two majorities of them meet; there is always a voter.
Source: Ongaro, "Consensus: bridging theory and practice", 4; docs/decisions/0012-one-member-at-a-time.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heliograph.model.errors import NotAllowed
from heliograph.raft.messages import CONFIG, Config, Entry, decode_config

NAME_BYTES_MAX = 200
ADDRESS_BYTES_MAX = 2000
MEMBERS_MAX = 64


@dataclass(frozen=True, slots=True)
class AddLearner:
    """address: `host:port`, or several `source=host:port`, comma separated, where members reach it by ways of their
    own.
    """

    member: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class Promote:
    """Makes a learner a voter."""

    member: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Takes a voter or a learner out of the group."""

    member: str


Change = AddLearner | Promote | Remove


def changed(config: Config, change: Change) -> Config:
    """The configuration behind a change; the same one where it holds already. Raises NotAllowed."""
    voters, learners, addresses = set(config.voters), set(config.learners), dict(config.addresses)
    match change:
        case AddLearner(member, address):
            _check_name(member, address)
            if member in config.members:
                if addresses.get(member, "") == address or not address:
                    return config
                raise NotAllowed(
                    f"{member!r} is a member already, at another address "
                    f"({addresses.get(member) or 'of the settings'}): remove it first"
                )
            if len(config.members) >= MEMBERS_MAX:
                raise NotAllowed(f"the group has {MEMBERS_MAX} members already: remove one first")
            learners.add(member)
            if address:
                addresses[member] = address
        case Promote(member):
            if member in voters:
                return config
            if member not in learners:
                raise NotAllowed(f"{member!r} is no member: add it as a learner first")
            learners.discard(member)
            voters.add(member)
        case Remove(member):
            if member not in config.members:
                return config
            if config.voters == (member,):
                raise NotAllowed(f"{member!r} is the only voter: promote another member first")
            voters.discard(member)
            learners.discard(member)
            addresses.pop(member, None)
    return Config(tuple(sorted(voters)), tuple(sorted(learners)), tuple(sorted(addresses.items())), config.forced)


def forced(config: Config, node_id: str, generation: int) -> Config:
    """The configuration of one voter that goes on without all others, as an operator has said."""
    own = tuple(row for row in config.addresses if row[0] == node_id)
    return Config((node_id,), (), own, generation)


def _check_name(member: str, address: str) -> None:
    if not 0 < len(member.encode()) <= NAME_BYTES_MAX or not member.isprintable():
        raise NotAllowed(f"a member's name has 1 to {NAME_BYTES_MAX} printable bytes")
    if len(address.encode()) > ADDRESS_BYTES_MAX:
        raise NotAllowed(f"a member's address has at most {ADDRESS_BYTES_MAX} bytes")
    for way in filter(None, address.split(",")):
        host, _, port = way.rpartition("=")[2].rpartition(":")
        if not host or not (len(port) < 6 and port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
            raise NotAllowed(f"{way!r} is no address: expected host:port, or source=host:port")


def address_for(source: str, address: str) -> str:
    """Where `source` reaches a member of this address; empty where it says nothing of it."""
    ways = [way.strip().rpartition("=") for way in address.split(",")]
    for name, _, way in ways:
        if name == source:
            return way
    return next((way for name, _, way in ways if not name), "")


class Configurations:
    """Holds (index, configuration) of one log, ascending; the first is that of the log's base."""

    __slots__ = ("_rows", "latest")

    def __init__(self, base_index: int, config: Config) -> None:
        self._rows = [(base_index, config)]
        self.latest = config

    @property
    def latest_index(self) -> int:
        """Index of the latest configuration's entry; the log's base where no entry of the log changes it."""
        return self._rows[-1][0]

    @property
    def before(self) -> Config:
        """The one before the latest, as far as it is known."""
        return self._rows[-2 if len(self._rows) > 1 else -1][1]

    def left_behind(self) -> Config:
        """The one before the latest that was forced, as far as it is known; that one itself else."""
        return next((config for _, config in reversed(self._rows) if config.forced != self.latest.forced), self.latest)

    @property
    def left_index(self) -> int:
        """Index of the configuration that `left_behind` is; 0 where the log knows the one that was forced alone, whose
        own index is later than any that it left.
        """
        behind = self.left_behind()
        if behind is self.latest and behind.forced:
            return 0
        return next(index for index, config in reversed(self._rows) if config is behind)

    def may_leave_behind(self, sender: str, commit: int, left: int = 0) -> bool:
        """Whether that one may have been forced without this member: it is one of the group, or was one when this
        member was forced itself; or the configuration that it left (at the index `left`; 0: it does not say) is a later
        one than this member has read of: it joined while this one was away. Who was removed may go on alone, and leaves
        nobody behind that knows of it. Where the log has forgotten who was left behind it may be anybody: else two that
        were forced would go on beside each other.
        """
        behind = self.left_behind()
        if (behind is self.latest and behind.forced) or left > self.left_index:
            return True
        before = self.before.members if self.latest_index > commit else ()
        return sender in (*self.latest.members, *behind.members, *before)

    def at(self, index: int) -> Config:
        """In effect at `index`, which lies at the log's base or behind it."""
        return next(config for at, config in reversed(self._rows) if at <= index)

    def adopt(self, first: int, entries: Sequence[Entry]) -> bool:
        """Takes over what entries from `first` on say; whether there was one."""
        count = len(self._rows)
        for at, (_, kind, data) in enumerate(entries, first):
            if kind == CONFIG:
                self._rows.append((at, decode_config(data)[0]))
        self.latest = self._rows[-1][1]
        return len(self._rows) > count

    def roll_back(self, first: int) -> None:
        """The entries from `first` on are gone."""
        while self._rows[-1][0] >= first:
            del self._rows[-1]
        self.latest = self._rows[-1][1]

    def compact(self, base_index: int) -> None:
        while len(self._rows) > 1 and self._rows[1][0] <= base_index:
            del self._rows[0]

    def reset(self, base_index: int, config: Config) -> None:
        self._rows, self.latest = [(base_index, config)], config


class Addresses:
    """Where one member reaches the others: as its settings say, else as the configuration says, else as a sender says
    of itself.

    A member that lags may be spoken to by one that it has not read of yet; without an answer it would lag for ever.
    """

    def __init__(self, node_id: str, given: Mapping[str, str]) -> None:
        self.node_id, self.own = node_id, ""
        """own: what this member tells of itself; empty where the others know it from their settings."""
        self._given = {member: address for member, address in given.items() if member != node_id}
        self._told: dict[str, str] = {}

    def learn(self, config: Config) -> None:
        addresses = dict(config.addresses)
        self.own = addresses.get(self.node_id, self.own)
        self._told |= {
            member: way for member, address in config.addresses if (way := address_for(self.node_id, address))
        }
        if len(self._told) > 2 * MEMBERS_MAX:
            self._told = {member: way for member, way in self._told.items() if member in addresses}

    def hear(self, sender: str, address: str) -> bool:
        """A sender that says where it is; whether it can be answered."""
        if not self.of(sender) and len(self._told) < 2 * MEMBERS_MAX and (way := address_for(self.node_id, address)):
            self._told[sender] = way
        return bool(self.of(sender))

    def of(self, member: str) -> str:
        """Returns `host:port`, or "" where nobody said it."""
        return self._given.get(member) or self._told.get(member, "")

    def known(self) -> list[str]:
        return sorted({*self._given, *self._told})
