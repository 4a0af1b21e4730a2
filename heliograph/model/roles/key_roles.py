"""Which roles of a region's certificates may read, write, and watch which keys of its metadata: a row for each prefix.

Is: the form of a row, the check of the rows, and the keys of one peer. Isn't: the rows (`local_meta.key_rows`), or
which calls a role may make at all (`heliograph.model.roles.call_roles`).
Invariants: what no row gives to a role is refused; a listing, and a watch, lie below one row as a whole; where keys are
for those of their own name, a peer has one name, the first that it takes on its connection. A role that may do
everything is asked nothing.
Source: docs/security.md, "Keys of the metadata"; docs/decisions/0231-keys-of-the-metadata-say-their-roles.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from heliograph.model.errors import NotAllowed
from heliograph.model.roles.call_roles import ROLES


class KeyRow(NamedTuple):
    """prefix: ends with "/", or is one key, or one counter (which has no "/"); "": every one. own: who reads and
    writes the key of its own name below it. make: who writes it where it is not there yet, and never changes it.
    """

    prefix: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    watch: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    make: tuple[str, ...] = ()

    def holds(self, key: str) -> bool:
        return key.startswith(self.prefix) if self.prefix.endswith("/") or not self.prefix else key == self.prefix


class KeyRoles:
    """The rows of one metadata. Raises TypeError where a row names no role of a region's; ValueError for two rows of
    one prefix.
    """

    def __init__(self, rows: Iterable[KeyRow]) -> None:
        self.rows = tuple(rows)
        if len({row.prefix for row in self.rows}) != len(self.rows):
            raise ValueError("a prefix has two rows: leave one")
        for row in self.rows:
            named = {*row.read, *row.write, *row.watch, *row.own, *row.make}
            if not named or not ROLES.issuperset(named):
                raise TypeError(f"{row.prefix}: {sorted(named)} are no roles of a region's certificates")

    def of(self, role: str) -> PeerKeys | None:
        """What a peer of that role may do, on one connection; None: everything."""
        rows = [row for row in self.rows if role in (*row.read, *row.write, *row.watch, *row.own, *row.make)]
        if any(not row.prefix and role in row.read and role in row.write and role in row.watch for row in rows):
            return None
        return PeerKeys(role, rows)


class PeerKeys:
    """What one peer may do with keys, for as long as its connection. Every call raises NotAllowed."""

    def __init__(self, role: str, rows: Iterable[KeyRow]) -> None:
        self._role, self._rows = role, tuple(rows)
        self.name = ""
        """As its own keys end; "": it has asked for none yet."""

    def read(self, key: str) -> None:
        if not any(row.holds(key) and (self._role in row.read or self._is_own(row, key)) for row in self._rows):
            raise self._refused("read", key)

    def read_range(self, start: str, end: str) -> None:
        if not any(
            self._role in row.read and row.prefix.endswith("/") and row.holds(start) and end <= _end(row.prefix)
            for row in self._rows
        ):
            raise self._refused("list", start)

    def watch(self, prefix: str) -> None:
        if not any(self._role in row.watch and row.holds(prefix) for row in self._rows):
            raise self._refused("watch", prefix)

    def write(self, key: str, *, absent: bool = False) -> None:
        """absent: only where it is not there yet."""
        if not any(
            row.holds(key)
            and (self._role in row.write or (absent and self._role in row.make) or self._is_own(row, key))
            for row in self._rows
        ):
            raise self._refused("write", key)

    def _is_own(self, row: KeyRow, key: str) -> bool:
        name = key.removeprefix(row.prefix)
        if self._role not in row.own or not name or "/" in name or name != (self.name or name):
            return False
        self.name = name
        return True

    def _refused(self, what: str, key: str) -> NotAllowed:
        name = f" {self.name}" if self.name else ""
        return NotAllowed(f"a {self._role}{name} may not {what} {key}: ask with a broker's certificate")


def _end(prefix: str) -> str:
    """The first key behind all that begin with a prefix which ends with a slash."""
    return prefix[:-1] + "0"
