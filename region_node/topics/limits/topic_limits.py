"""Limits: what a topic's policies keep out: names, subscriptions, clients that subscribe too often, entries.

Is: checks before a subscription or a run is taken, in Pulsar's words and with its codes.
Isn't: whom a topic lets in as it is now (`region_node.topics.admission`), rates of messages
(`region_node.subscriptions.rate_limits`), or what is done on a tick (`region_node.topics.policies.policy_maintenance`).
A limit that is lowered throws nobody out; it holds for whoever comes next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from heliograph.model.configuration.policy_table import Applied
from heliograph.model.errors import (
    CorruptData,
    EncryptionRequired,
    HeliographError,
    NotAllowed,
)
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import Run
from region_node.subscriptions.delayed_delivery import delayed_entries

_COUNTED_MAX = 10_000
"""Clients of a topic whose subscriptions are counted at a time: with one more, counting begins anew."""
NAME_BYTES_MAX = 1000
"""Names of producers and subscriptions are not longer: both are parts of what the metadata holds, key or value."""
CLIENT_METADATA_BYTES_MAX = 64 << 10
"""What a producer or consumer says of itself."""
PAIR_BYTES = 100
"""What a pair of that takes beside its texts."""


class Pair(Protocol):
    """A pair of texts, as commands have them."""

    @property
    def key(self) -> str: ...

    @property
    def value(self) -> str: ...


def check_new_subscription(policies: Applied, topic: str, name: str, there: int) -> None:
    """Raises NotAllowed: the name is too long, or the topic has as many as it may have. there: how many it has."""
    check_name("subscription", name)
    most = policies.limit("maxSubscriptions")
    if most and there >= most:
        raise NotAllowed(
            f"Exceed the maximum number of subscriptions of the topic: {topic}, subscription: {name}, limit {most}"
        )


def check_name(what: str, name: str) -> None:
    """Raises NotAllowed: it is too long. what: of whom it is the name."""
    size = len(name) if name.isascii() else len(name.encode())
    if size > NAME_BYTES_MAX:
        raise NotAllowed(f"the name of the {what} has {size} bytes: at most {NAME_BYTES_MAX} are allowed")


def metadata_of(what: str, pairs: Sequence[Pair]) -> dict[str, str]:
    """What a producer or consumer says of itself. Raises NotAllowed: it is too much. what: whose it is."""
    size = PAIR_BYTES * len(pairs)
    if size <= CLIENT_METADATA_BYTES_MAX:
        metadata = {pair.key: pair.value for pair in pairs}
        if metadata_bytes(metadata) <= CLIENT_METADATA_BYTES_MAX:
            return metadata
    raise NotAllowed(
        f"the metadata of the {what} has more than {CLIENT_METADATA_BYTES_MAX} bytes, {PAIR_BYTES} for each pair "
        "beside its texts: say less"
    )


def metadata_bytes(metadata: Mapping[str, str]) -> int:
    """What it takes in memory, about."""
    return PAIR_BYTES * len(metadata) + sum(len(key) + len(value) for key, value in metadata.items())


class SubscribeRate:
    """How often each client may subscribe to one topic: counted by period."""

    __slots__ = ("_counts", "_until")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._until = 0.0

    def check(self, policies: Applied, client: str, now: float) -> None:
        """client: what tells one consumer of one client from another. Raises NotAllowed."""
        most = policies.part("subscribeRate", "subscribeThrottlingRatePerConsumer")
        if most is None or most <= 0:
            return
        if now >= self._until or len(self._counts) >= _COUNTED_MAX:
            self._counts, self._until = {}, now + policies.part("subscribeRate", "ratePeriodInSecond")
        if self._counts.get(client, 0) >= most:
            raise NotAllowed("Subscribe limited by subscribe rate limit per consumer.")
        self._counts[client] = self._counts.get(client, 0) + 1


def is_strict(policies: Applied) -> bool:
    """Whether any entry may be refused: else nobody looks at it."""
    delay = policies.part("delayedDelivery", "maxDeliveryDelayInMillis")
    return bool(policies.limit("maxMessageSize") or policies.on("encryptionRequired") or delay)


def refusals(policies: Applied, topic: str, run: Run, now_ms: int) -> list[tuple[int, HeliographError]]:
    """(index, why) of the entries of a run that are not stored, in order."""
    found: dict[int, HeliographError] = {}
    if policies.on("encryptionRequired"):
        found.update(
            (index, EncryptionRequired("Messages must be encrypted"))
            for index, part in enumerate(run.parts)
            if not _encrypted(part)
        )
    delay_max = policies.part("delayedDelivery", "maxDeliveryDelayInMillis")
    if delay_max:
        for index, _ in delayed_entries(run, now_ms + delay_max):
            found[index] = NotAllowed(f"Exceeds max allowed delivery delay of {delay_max} milliseconds")
    size_max = policies.limit("maxMessageSize")
    if size_max and max(run.lengths) > size_max:
        for index, size in enumerate(run.lengths):
            if size > size_max:
                found[index] = NotAllowed(f"Exceed maximum message size: {size} bytes, at most {size_max} in {topic}")
    return sorted(found.items())


def _encrypted(part: bytes | bytearray | memoryview) -> bool:
    try:
        return bool(entry_metadata(part)[0].encryption_keys)
    except CorruptData:
        return False
