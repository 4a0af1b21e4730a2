"""Anti-affinity: how the namespaces of one group share the failure domains of a region, so that no domain's loss takes
all of them.

Is: the division, from who may serve each namespace and which broker stands in which domain. Isn't: where either is
stored (`isolation_rules`).
Invariants:
- each namespace keeps at least one of its permitted brokers, and gets no other;
- no two namespaces share a domain, as long as the domains suffice for one each;
- no domain that some namespace could use is left over; where there are fewer domains than namespaces, they are shared
  as evenly as can be seen;
- whoever divides the same finds the same.
A broker in no domain is a domain of its own.
Source: Pulsar's anti-affinity groups and failure domains; docs/protocols/balancing.md, "Anti-affinity".
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from heliograph.model.errors import CorruptData, NotAllowed

FORMAT = 1
DOMAINS_MAX = 1000
BROKERS_MAX = 1000


@dataclass(frozen=True, slots=True)
class FailureDomain:
    """Brokers that fail together, by their ids, hosts, or host:port of the admin interface."""

    brokers: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.brokers) > BROKERS_MAX or not all(self.brokers):
            raise NotAllowed(f"a failure domain has at most {BROKERS_MAX} brokers, each with a name")

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb({"format": FORMAT, "brokers": self.brokers})
        return packed

    @classmethod
    def decode(cls, blob: bytes) -> FailureDomain:
        """Reads what `encode` wrote. Raises CorruptData, also of a format that this version does not know."""
        try:
            fields: dict[str, Any] = msgpack.unpackb(blob)
            if fields["format"] != FORMAT:
                raise CorruptData(f"failure domain: of format {fields['format']}, which this version does not know")
            return cls(tuple(map(str, fields["brokers"])))
        except (ValueError, TypeError, KeyError, NotAllowed, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"failure domain: {error!r}") from error


def divide(permitted: Mapping[str, Sequence[str]], domain_of: Mapping[str, str]) -> dict[str, list[str]]:
    """permitted: namespace -> the brokers that may serve it, at least one. domain_of: of the brokers that are in
    one.
    """
    brokers: dict[str, dict[tuple[int, str], list[str]]] = {}
    for namespace in sorted(permitted):
        mine = brokers[namespace] = {}
        for broker in sorted(permitted[namespace]):
            mine.setdefault((1, domain_of[broker]) if broker in domain_of else (0, broker), []).append(broker)
    wishes = {
        namespace: sorted(mine, key=lambda domain, namespace=namespace: _wish(namespace, domain))  # type: ignore[misc]
        for namespace, mine in brokers.items()
    }
    taken = _matched(wishes)
    shares: dict[str, list[tuple[int, str]]] = {namespace: [] for namespace in wishes}
    for domain, namespace in taken.items():
        shares[namespace].append(domain)
    users = dict.fromkeys(taken, 1)
    for namespace, wished in wishes.items():
        if not shares[namespace]:
            least = min(wished, key=lambda domain: users[domain])
            shares[namespace].append(least)
            users[least] += 1
    for domain in sorted({domain for wished in wishes.values() for domain in wished} - set(taken)):
        wanting = [namespace for namespace, wished in wishes.items() if domain in wished]
        shares[min(wanting, key=lambda namespace: (len(shares[namespace]), _wish(namespace, domain)))].append(domain)
    return {
        namespace: sorted(broker for domain in shares[namespace] for broker in brokers[namespace][domain])
        for namespace in wishes
    }


def _wish(namespace: str, domain: tuple[int, str]) -> tuple[int, tuple[int, str]]:
    """By which a namespace prefers a domain, the least first: another order for each, and the same at each broker."""
    return zlib.crc32(f"{namespace}\0{domain[0]}{domain[1]}".encode()), domain


def _matched(wishes: Mapping[str, Sequence[tuple[int, str]]]) -> dict[tuple[int, str], str]:
    """Domain -> a namespace, as many as can have one of their own (Kuhn's augmenting paths; a group has few
    namespaces).
    """
    taken: dict[tuple[int, str], str] = {}

    def place(namespace: str, tried: set[tuple[int, str]]) -> bool:
        for domain in wishes[namespace]:
            if domain not in tried:
                tried.add(domain)
                if domain not in taken or place(taken[domain], tried):
                    taken[domain] = namespace
                    return True
        return False

    domains = {domain for wished in wishes.values() for domain in wished}
    for namespace in wishes:
        if len(taken) == len(domains):
            break
        place(namespace, set())
    return taken
