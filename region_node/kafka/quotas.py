"""ClientQuotas: how many bytes a second a user, or a client by its id, may produce and fetch at one broker, as Kafka's tools set them.

Is: the table of quotas in the region's metadata, which of them holds for whom, and how long who is above waits. Isn't: the rates of topics and resource
groups (`region_node.topics.rates`), which hold too.
Invariants: the most particular quota holds, and no other; who is above it is answered, told the time, and not read from until then; what was taken stays
taken when quotas change. Without any quota a request costs one look.
Source: Kafka KIP-13, KIP-219, KIP-546; docs/protocols/kafka.md, "Quotas".

    /kafka/quotas/{user}/{client}  ->  [1, {name: bytes a second}]        a part is - (none), * (the default), or = and a name
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from heliograph.model.errors import CorruptData, VersionConflict
from heliograph.model.ledgers import pack, unpack
from heliograph.raft.store import ABSENT, MetadataStore
from heliograph.runtime.clock import Clock
from region_node.kafka.errors import Code, Refused
from region_node.subscriptions.throttle import Bucket

if TYPE_CHECKING:
    from region_node.kafka.connection import KafkaConnection

log = logging.getLogger("region_node.kafka")

QUOTAS = "/kafka/quotas/"
PRODUCE, FETCH = "producer_byte_rate", "consumer_byte_rate"
_NAMES = (PRODUCE, FETCH)
NONE, DEFAULT = "-", "*"
ANONYMOUS = "ANONYMOUS"
"""Kafka's name for users where nobody has to say who they are."""
_BUCKETS_MAX = 10_000
_TRIES = 16
Entity = tuple[str, str]
"""(user, client), each as a part of the key."""


def named(name: str | None) -> str:
    """None: the default."""
    return DEFAULT if name is None else "=" + quote(name, safe="")


def name_of(part: str) -> str | None:
    """The reverse, of a part that is there."""
    return None if part == DEFAULT else unquote(part[1:])


class Limits(NamedTuple):
    """What holds for one user with one client id. `version`: of the table then."""

    version: int
    produce: Bucket | None
    fetch: Bucket | None


class ClientQuotas:
    """As one broker knows and keeps them. Make it on the event loop."""

    def __init__(self, meta: MetadataStore, clock: Clock) -> None:
        self._meta, self._clock = meta, clock
        self.table: dict[Entity, dict[str, float]] = {}
        self.active = False
        self.version = 0
        self._buckets: OrderedDict[tuple[str, Entity], Bucket] = OrderedDict()
        self._stop: Callable[[], None] = meta.watch(QUOTAS, self._on_key)

    def close(self) -> None:
        self._stop()

    def _on_key(self, key: str, value: bytes | None, _version: int) -> None:
        user, _, client = key.removeprefix(QUOTAS).partition("/")
        if value is None:
            self.table.pop((user, client), None)
        else:
            try:
                self.table[user, client] = _read(value)
            except CorruptData as error:  # the one that was known before holds on
                log.warning("kafka.quota_unreadable", extra={"key": key, "error": str(error)})
        self.active, self.version = bool(self.table), self.version + 1

    # -- who has which ----------------------------------------------------------------------------------------------------------

    def limits(self, user: str, client: str) -> Limits:
        """Of the connections of that user with that client id; look again once `version` has changed."""
        whole = (named(user), named(client))
        return Limits(self.version, self._bucket(PRODUCE, whole), self._bucket(FETCH, whole))

    def rate(self, name: str, whole: Entity) -> tuple[float, Entity] | None:
        """(bytes a second, who shares them): of the most particular quota."""
        user, client = whole
        for entry in (
            *((user, client), (user, DEFAULT), (user, NONE)),
            *((DEFAULT, client), (DEFAULT, DEFAULT), (DEFAULT, NONE)),
            *((NONE, client), (NONE, DEFAULT)),
        ):
            rate = self.table.get(entry, {}).get(name)
            if rate is not None:
                return rate, (user if entry[0] != NONE else NONE, client if entry[1] != NONE else NONE)
        return None

    def _bucket(self, name: str, whole: Entity) -> Bucket | None:
        found = self.rate(name, whole)
        if found is None:
            return None
        rate, shared, now = found[0], (name, found[1]), self._clock.monotonic()
        bucket = self._buckets.get(shared)
        if bucket is None:
            bucket = self._buckets[shared] = Bucket(0, rate, now)
            if len(self._buckets) > _BUCKETS_MAX:
                self._buckets.popitem(last=False)
        elif bucket.size_bytes != rate:
            bucket.set_rates(0, rate, now)
        self._buckets.move_to_end(shared)
        return bucket

    # -- what is used -----------------------------------------------------------------------------------------------------------

    def _limits_of(self, connection: KafkaConnection, client: str) -> Limits:
        known = connection.limits
        if known is None or known[0] != client or known[1].version != self.version:
            assert connection.login.principal is not None
            known = connection.limits = client, self.limits(connection.login.principal.role or ANONYMOUS, client)
        return known[1]

    def produced(self, connection: KafkaConnection, client: str, size_bytes: int) -> int:
        """A request was taken; returns for how many ms its connection is held now."""
        return self._spend(connection, self._limits_of(connection, client).produce, size_bytes)

    def fetched(self, connection: KafkaConnection, client: str, size_bytes: int) -> int:
        """The same, of an answer."""
        return self._spend(connection, self._limits_of(connection, client).fetch, size_bytes)

    def room(self, connection: KafkaConnection, client: str) -> int | None:
        """A second's bytes: no answer brings more, beyond its first batch. None: no limit."""
        bucket = self._limits_of(connection, client).fetch
        return None if bucket is None else max(1, int(bucket.size_bytes))

    def _spend(self, connection: KafkaConnection, bucket: Bucket | None, size_bytes: int) -> int:
        if bucket is None:
            return 0
        bucket.refill(self._clock.monotonic())
        bucket.spend(0, size_bytes)
        wait_s = bucket.wait_s
        if wait_s <= 0:
            return 0
        connection.hold_for(wait_s)
        return min(math.ceil(wait_s * 1000), (1 << 31) - 1)

    # -- changes ----------------------------------------------------------------------------------------------------------------

    async def change(self, entity: Entity, changes: dict[str, float | None]) -> None:
        """Sets quotas; None takes one away. Raises VersionConflict where others change it again and again, and what the metadata raises."""
        key = QUOTAS + "/".join(entity)
        for left in reversed(range(_TRIES)):
            found = await self._meta.get(key)
            values = {**({} if found is None else _read(found[0])), **changes}
            rates = {name: rate for name, rate in values.items() if rate is not None}
            try:
                if rates:
                    await self._meta.put(key, pack([rates]), expected=ABSENT if found is None else found[1])
                elif found is not None:
                    await self._meta.delete(key, expected=found[1])
                return
            except VersionConflict:
                if not left:
                    raise


def _read(blob: bytes) -> dict[str, float]:
    rates = unpack("client quota", blob)[0]
    if not isinstance(rates, dict) or not all(isinstance(name, str) and isinstance(rate, (int, float)) and rate > 0 for name, rate in rates.items()):
        raise CorruptData("client quota: expected rates above 0 by their names")
    return {name: float(rate) for name, rate in rates.items()}


def check(name: str, rate: float) -> None:
    """Raises Refused."""
    if name not in _NAMES:
        raise Refused(Code.INVALID_REQUEST, f"{name} is no quota that is kept here; there are {' and '.join(_NAMES)}")
    if not rate >= 1 or rate != int(min(rate, 1e18)):
        raise Refused(Code.INVALID_REQUEST, f"{name} must be a whole number of bytes a second, at least 1, not {rate}")
