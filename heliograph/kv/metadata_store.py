"""MetadataStore: what a versioned key-value store offers, whoever keeps it.

Is: the protocol that the networked client and the in-process store implement, the operations of a transaction, and the
limits of keys and values.
Isn't: consensus, frames, or any meaning of a key.
Invariants: a key's version only grows, also over a deletion; all puts of one transaction get the same version; a watch
calls back in version order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from heliograph.model.errors import NotAllowed

KEY_BYTES_MAX = 4096
VALUE_BYTES_MAX = 1 << 20
OPS_MAX = 1024
TXN_BYTES_MAX = 4 << 20
RANGE_LIMIT = 10_000
"""How many keys a range without a limit returns at most, where a store is not given another bound."""
PAGE_BYTES_MAX = 4 << 20
"""A range without a limit, and an answer of a server, end behind the row that reaches this."""
ABSENT = -1
"""The `expected` of a key that must not exist."""
LEASE_TTL_MS = 3000
"""Lease of brokers and bookies, renewed each second."""
TTL_MS_MIN, TTL_MS_MAX = 100, 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Put:
    """Sets a key. expected: None = whatever is there, -1 = must be absent, else the version. lease: 0, or the lease
    with which the key goes.
    """

    key: str
    value: bytes
    expected: int | None = None
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes a key; an absent one is no error unless `expected` says that it is there."""

    key: str
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Changes nothing; the transaction fails unless the key has this version (-1: is absent)."""

    key: str
    expected: int


Op = Put | Delete | Check
WatchCallback = Callable[[str, bytes | None, int], None]
"""(key, value or None where it was deleted, version)."""


class MetadataStore(Protocol):
    """Reads are linearizable unless said otherwise. Every call is bounded in time.

    Raises MetadataUnavailable (nothing was changed), OutcomeUnknown (a write may or may not have happened), NotAllowed
    (a limit of this module).
    """

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """(value, version), or None where the key is absent."""
        ...

    async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
        """Returns the new version. Raises VersionConflict, LeaseLost."""
        ...

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        """Returns whether the key was there. Raises VersionConflict."""
        ...

    async def txn(self, ops: Sequence[Op]) -> int:
        """All or nothing; every `expected` speaks of the state before. Returns the version of all its puts. Raises
        VersionConflict of the first that failed, LeaseLost.
        """
        ...

    async def range(self, start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]:
        """(key, value, version) of the keys in [start, end), in order, at most `limit` (None: a page, of at most
        `range_limit` keys and little above PAGE_BYTES_MAX). With a limit it is read in pages, each linearizable.
        """
        ...

    @property
    def range_limit(self) -> int:
        """How many keys a range without a limit returns at most: whoever wants all of them takes `pages_under`."""
        ...

    async def count(self, prefix: str) -> int:
        """How many keys begin with `prefix`, which is three parts: `/ml/public/default/`. It costs no more than one
        key.
        """
        ...

    async def next_ids(self, counter: str, count: int = 1, *, at_least: int = 0) -> int:
        """The first of `count` fresh consecutive ids, none of them below `at_least`; with a count of 0 the next one,
        which is not given out by that. Counters are no keys: ranges and watches don't see them.
        """
        ...

    async def grant(self, ttl_ms: int) -> int:
        """A new lease (above 0). Keys put under it go when it is not renewed for `ttl_ms`, or later where the leader
        changes.
        """
        ...

    async def renew(self, lease: int) -> None:
        """Begins the lease's time anew. Raises LeaseLost where it has ended."""
        ...

    async def revoke(self, lease: int) -> None:
        """Ends a lease and deletes its keys; an unknown lease is no error."""
        ...

    def watch(self, prefix: str, callback: WatchCallback) -> Callable[[], None]:
        """First every present key, then each change, in version order. After a reconnect only what changed meanwhile,
        deletions included; or every present key again, where the store went back to an older copy of itself: versions
        are lower then.

        Returns "stop". The callback runs on the event loop, never inside this call; it must not raise.
        """
        ...

    async def synced(self, prefix: str) -> None:
        """Returns once every watch of exactly this prefix has called back for each key that was present when it
        began. Raises NotAllowed where the metadata refuses such a watch, which is asked for again at the next
        connection: what it has not told is not absent.
        """
        ...

    def stale_s(self) -> float:
        """How old what the watches told may be: 0 while the node that feeds them hears the leader."""
        ...

    def close(self) -> None: ...


async def pages_under(store: MetadataStore, prefix: str) -> AsyncIterator[list[tuple[str, bytes, int]]]:
    """Every (key, value, version) under `prefix`, in order, however many there are: page by page, none empty, each
    linearizable.
    """
    async for rows in pages_between(store, prefix, prefix_end(prefix)):
        yield rows


async def rows_under(store: MetadataStore, prefix: str) -> list[tuple[str, bytes, int]]:
    """The same in one list: of what is few as a rule, and may be many."""
    return [row async for rows in pages_under(store, prefix) for row in rows]


async def pages_between(store: MetadataStore, start: str, end: str) -> AsyncIterator[list[tuple[str, bytes, int]]]:
    """The same of the keys in [start, end)."""
    while rows := await store.range(start, end):
        yield rows
        if len(rows) < store.range_limit and not fills_page(rows):
            return
        start = rows[-1][0] + "\0"


def fills_page(rows: list[tuple[str, bytes, int]]) -> bool:
    """Whether they reach PAGE_BYTES_MAX: more may follow."""
    return sum(4 * len(key) + len(value) for key, value, _ in rows) >= PAGE_BYTES_MAX


def prefix_end(prefix: str) -> str:
    """The end of the range of all keys that begin with `prefix`."""
    while prefix and ord(prefix[-1]) >= 0x10FFFF:
        prefix = prefix[:-1]
    if not prefix:
        return "\U0010ffff" * 8
    following = ord(prefix[-1]) + 1
    return prefix[:-1] + chr(0xE000 if 0xD800 <= following < 0xE000 else following)


def check_key(key: str) -> None:
    """Raises NotAllowed unless the key is UTF-8 of 1 to KEY_BYTES_MAX bytes."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise NotAllowed(f"key {key[:40]!r}: not encodable as UTF-8") from error
    if not 1 <= size <= KEY_BYTES_MAX:
        raise NotAllowed(f"key {key[:40]!r}: {size} bytes; 1 to {KEY_BYTES_MAX} are allowed")


def check_ops(ops: Sequence[Op]) -> None:
    """Raises NotAllowed where a key, a value, or the whole is too large."""
    if not 1 <= len(ops) <= OPS_MAX:
        raise NotAllowed(f"transaction of {len(ops)} operations; 1 to {OPS_MAX} are allowed")
    total = 0
    for op in ops:
        check_key(op.key)
        total += len(op.key.encode())
        if isinstance(op, Put):
            size = len(op.value)
            if size > VALUE_BYTES_MAX:
                raise NotAllowed(f"key {op.key[:200]}: a value of {size} bytes; at most {VALUE_BYTES_MAX} are allowed")
            total += size
    if total > TXN_BYTES_MAX:
        raise NotAllowed(f"transaction of {total} bytes; at most {TXN_BYTES_MAX} are allowed")


def check_ttl(ttl_ms: int) -> None:
    """Raises NotAllowed unless it is an integer from TTL_MS_MIN to TTL_MS_MAX."""
    if not isinstance(ttl_ms, int) or not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
        raise NotAllowed(f"lease of {ttl_ms} ms; {TTL_MS_MIN} to {TTL_MS_MAX} are allowed")
