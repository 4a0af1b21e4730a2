"""ClientQuotas: what a user, a client by its id, or an address may take of one broker, as Kafka's tools set it.

Is: which of the quotas that are set holds for whom, and how long who is above it waits. Isn't: the table of what is set
(`quota_table`), how long a request has worked (`request_time`), or the rates of topics and resource groups
(`region_node.topics.limits.topic_rates`), which hold too.
Invariants: the most particular quota holds, and no other; who is above it is answered, told the time, and not read from
until then, or until the quota is gone; what was taken stays taken when quotas change, and when its connections come and
go. Without any quota a request costs one look.
Source: Kafka KIP-13, KIP-124, KIP-219, KIP-546, KIP-599, KIP-612; docs/protocols/kafka.md, "Quotas".
"""

from __future__ import annotations

import ipaddress
import math
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

from heliograph.runtime.clock import Clock
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.quotas.quota_table import (
    CONNECTIONS,
    FETCH,
    MUTATION,
    PRODUCE,
    REQUEST,
    Entity,
    QuotaTable,
    named,
)
from region_node.faces.kafka.shared_rows import RowStores
from region_node.subscriptions.rate_limits import Bucket

ANONYMOUS = "ANONYMOUS"
"""Kafka's name for users where nobody has to say who they are."""
_CHANGES = ("create_topics", "delete_topics", "create_partitions")
_MICROS_A_PERCENT = 10_000
_BURST_S = {MUTATION: 11.0}
"""A bucket holds so much: Kafka's eleven windows of a second for changes; a second of everything else."""
_WAIT_MAX_S = {REQUEST: 1.0, CONNECTIONS: 1.0}
"""Kafka's window: nobody waits longer at once."""
_MS_MAX = (1 << 31) - 1


class Shared(Bucket):
    """What all connections that a quota is for take from."""

    __slots__ = ("__weakref__", "wait_max_s")

    def __init__(self, name: str, rate: float, now: float) -> None:
        super().__init__(0, rate, now, _BURST_S.get(name, 1.0))
        self.wait_max_s = _WAIT_MAX_S.get(name, math.inf)

    @property
    def full(self) -> bool:
        """Then it is as good as a new one."""
        return self._bytes_left >= max(1.0, self.size_bytes * self._period_s)


class ClientLimits(NamedTuple):
    """What holds for one user with one client id. `version`: of the table then."""

    version: int
    produce: Shared | None
    fetch: Shared | None
    request: Shared | None
    mutation: Shared | None


class MeteredSession(Protocol):
    """`region_node.faces.kafka.session.kafka_session.KafkaSession`, as its quotas meet it."""

    @property
    def closed(self) -> bool: ...

    @property
    def held_for(self) -> list[Shared]: ...

    def hold_for(self, wait_s: float, quota: Shared) -> None: ...

    def limits_of(self, client: str) -> ClientLimits: ...

    def limits_again(self) -> ClientLimits: ...


class ClientQuotas:
    """As one broker keeps them. Make it on the event loop."""

    def __init__(self, stores: RowStores, clock: Clock) -> None:
        self._clock = clock
        self.table = QuotaTable(stores, self._changed)
        self.active = False
        self._buckets: WeakValueDictionary[tuple[str, Entity], Shared] = WeakValueDictionary()
        self._used: dict[Shared, None] = {}
        """Kept until they are full again, whoever still has a connection: a client that comes again finds what it has
        taken.
        """
        self._held: dict[MeteredSession, None] = {}

    def close(self) -> None:
        self.table.close()

    def _changed(self) -> None:
        self.active = self.table.active
        for session in list(self._held):
            self._look_again(session)

    # -- who has which -------------------------------------------------------------------------------------------------

    def limits(self, user: str, client: str) -> ClientLimits:
        """Returns what holds for that user with that client id, until the table's `version` changes."""
        whole = (named(user), named(client))
        return ClientLimits(
            self.table.version,
            *(self._bucket(name, self.table.rate(name, whole)) for name in (PRODUCE, FETCH, REQUEST, MUTATION)),
        )

    def _bucket(self, name: str, found: tuple[float, Entity] | None) -> Shared | None:
        if found is None:
            return None
        rate, shared, now = (
            found[0] * (_MICROS_A_PERCENT if name == REQUEST else 1),
            (name, found[1]),
            self._clock.monotonic(),
        )
        bucket = self._buckets.get(shared)
        if bucket is None:
            bucket = self._buckets[shared] = Shared(name, rate, now)
        elif bucket.size_bytes != rate:
            bucket.set_rates(0, rate, now)
        return bucket

    # -- what is used --------------------------------------------------------------------------------------------------

    def produced(self, session: MeteredSession, client: str, size_bytes: int) -> int:
        """A request was taken; returns for how many ms its connection is held now."""
        return self._spend(session, session.limits_of(client).produce, size_bytes)

    def fetched(self, session: MeteredSession, client: str, size_bytes: int) -> int:
        """The same, of an answer."""
        return self._spend(session, session.limits_of(client).fetch, size_bytes)

    def room(self, session: MeteredSession, client: str) -> int | None:
        """A second's bytes: no answer brings more, beyond its first batch. None: no limit."""
        bucket = session.limits_of(client).fetch
        return None if bucket is None else max(1, int(bucket.size_bytes))

    def worked(self, session: MeteredSession, client: str, request: str, seconds: float) -> int:
        """A request's answer is ready, after so many seconds of this broker's thread; returns for how many ms its
        connection is held now.
        """
        limits = session.limits_of(client)
        wait_ms = self._spend(session, limits.request, math.ceil(seconds * 1e6))
        return max(wait_ms, self._spend(session, limits.mutation, 0)) if request in _CHANGES else wait_ms

    def changes(self, session: MeteredSession, client: str, partitions: int, *, strict: bool) -> None:
        """So many partitions are about to be made or deleted. Raises Refused where the rate is used up and the client
        can be told so (strict).
        """
        bucket = session.limits_of(client).mutation if self.active else None
        if bucket is None:
            return
        bucket.refill(self._clock.monotonic())
        if strict and bucket.wait_s > 0:
            raise Refused(Code.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
        self._take(bucket, partitions)

    def connected(self, address: str) -> float:
        """A client has connected from there; above 0: it is one too many, and is to be closed after so many seconds, as
        Kafka does.
        """
        if not self.table.addresses:
            return 0.0
        bucket = self._bucket(CONNECTIONS, self.table.address_rate(canonical(address)))
        if bucket is None:
            return 0.0
        bucket.refill(self._clock.monotonic())
        wait_s = min(bucket.wait_s, bucket.wait_max_s)
        if wait_s <= 0:
            self._take(bucket, 1)
        return wait_s

    def _take(self, bucket: Shared, amount: int) -> None:
        bucket.spend(0, amount)
        self._used[bucket] = None

    def _spend(self, session: MeteredSession, bucket: Shared | None, amount: int) -> int:
        if bucket is None:
            return 0
        bucket.refill(self._clock.monotonic())
        self._take(bucket, amount)
        wait_s = min(bucket.wait_s, bucket.wait_max_s)
        if wait_s <= 0:
            return 0
        if not session.closed:
            self._held[session] = None
            session.hold_for(wait_s, bucket)
        return min(math.ceil(wait_s * 1000), _MS_MAX)

    # -- as time goes by -----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """What is full again need not be remembered."""
        now = self._clock.monotonic()
        for bucket in list(self._used):
            bucket.refill(now)
            if bucket.full:
                del self._used[bucket]

    def let_go(self, session: MeteredSession) -> None:
        """It is not held any more, or it is gone."""
        self._held.pop(session, None)

    def _look_again(self, session: MeteredSession) -> None:
        """Quotas have changed: whoever is held by one that is gone goes on, and by one of another rate waits as long as
        that says.
        """
        limits, now = session.limits_again(), self._clock.monotonic()
        for bucket in session.held_for:
            bucket.refill(now)
            still = any(bucket is each for each in limits[1:])
            session.hold_for(min(bucket.wait_s, bucket.wait_max_s) if still else 0.0, bucket)


def canonical(address: str) -> str:
    """One form of each address. Raises ValueError for what is none."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
