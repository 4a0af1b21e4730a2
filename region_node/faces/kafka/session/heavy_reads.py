"""HeavyReads: requests whose answers may be long, and answers that their clients do not take: so many of each role.

Is: which requests those are, and who goes on. Isn't: the answer, or how it is written
(`region_node.faces.kafka.connection.kafka_connection`).
Invariants: what one role asks, or leaves untaken, makes nobody of another role wait; within a role no address's second
request goes before another's first.
Bounds: of one role AT_ONCE are answered at a time, and once UNTAKEN_BYTES_MAX of answers wait for its clients to take
them, each that is made keeps its place until its client has taken it, or has gone.
Source: docs/protocols/kafka.md, "Connections".
"""

from __future__ import annotations

from heliograph.model.errors import PeerError
from heliograph.runtime.throttle import FairQueue
from heliograph.wire.kafka.message_codec import Request

AT_ONCE = 8
"""Of one role. An answer takes up to 60 MB of memory while it is made, and 100 MB more when it is encoded."""
UNTAKEN_BYTES_MAX = 128 << 20
REQUEST_BYTES = 32 << 10
"""A request of more names some thousand things."""
WAITING_MAX = 10_000
"""Of one role: as many as a broker has connections, by default."""
_OF_MANY = frozenset({"describe_groups", "list_groups", "describe_log_dirs", "describe_acls"})


def is_heavy(request: Request, size_bytes: int) -> bool:
    """Whether the answer may be long, of a request that only looks: it is long itself, or asks for all that there is,
    or for what may have a MiB each.
    """
    fields = request.fields
    return (
        size_bytes > REQUEST_BYTES
        or request.api.name in _OF_MANY
        or not fields.get("topics", True)
        or any(not group.get("topics", True) for group in fields.get("groups", ()))
    )


class _OfRole:
    """`users`: who has a place, or waits for one. `untaken_bytes`: of answers that were made."""

    __slots__ = ("places", "untaken_bytes", "users")

    def __init__(self, at_once: int, waiting_max: int) -> None:
        self.places = FairQueue(at_once, waiting_max)
        self.users = self.untaken_bytes = 0


class Place:
    """One request's, from before it is looked into until its client has taken the answer: `end` it then, once."""

    __slots__ = ("_has_place", "_heavy", "_role", "size_bytes")

    def __init__(self, heavy: HeavyReads, role: str) -> None:
        self._heavy, self._role, self._has_place = heavy, role, True
        self.size_bytes = 0
        """Of the answer; 0: it is not made yet."""

    def made(self, size_bytes: int) -> None:
        """The answer waits for its client: the next one has its place, where the role has room for more."""
        self.size_bytes = size_bytes
        of_role = self._heavy.roles[self._role]
        of_role.untaken_bytes += size_bytes
        if of_role.untaken_bytes <= self._heavy.untaken_bytes_max:
            self._has_place = False
            of_role.places.give()

    def end(self) -> None:
        of_role = self._heavy.roles[self._role]
        of_role.untaken_bytes -= self.size_bytes
        if self._has_place:
            of_role.places.give()
        self._heavy.leave(self._role)


class HeavyReads:
    """Gives the places of one broker's listener. `roles`: those that have one, or wait for one."""

    def __init__(
        self, at_once: int = AT_ONCE, untaken_bytes_max: int = UNTAKEN_BYTES_MAX, *, waiting_max: int = WAITING_MAX
    ) -> None:
        self._at_once, self._waiting_max, self.untaken_bytes_max = at_once, waiting_max, untaken_bytes_max
        self.roles: dict[str, _OfRole] = {}

    async def place(self, role: str, address: str) -> Place:
        """Waits for it. Raises PeerError: too many of that role wait."""
        of_role = self.roles.setdefault(role, _OfRole(self._at_once, self._waiting_max))
        of_role.users += 1
        taken = False
        try:
            taken = await of_role.places.take(address)
        finally:
            if not taken:
                self.leave(role)
        if not taken:
            raise PeerError(
                f"more than {self._waiting_max} requests of the role {role!r} for long answers wait: ask for less"
            )
        return Place(self, role)

    def leave(self, role: str) -> None:
        """Somebody who had a place, or waited for one, has none any more."""
        self.roles[role].users -= 1
        if not self.roles[role].users:
            del self.roles[role]
