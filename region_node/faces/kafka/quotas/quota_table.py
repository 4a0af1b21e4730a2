"""QuotaTable: the quotas that Kafka's tools have set, as every broker of the instance follows them.

Is: rows in the global configuration, the names and units of quotas, and which row is nearest to a user and a client id.
Isn't: what a quota does (`client_quotas`), or where rows of an earlier version are
(`region_node.faces.kafka.shared_rows`).
Invariants: only names that mean something, with values that Kafka takes, are stored; a row that cannot be read changes
nothing.
Source: Kafka KIP-546, KIP-612; docs/protocols/kafka.md, "Quotas".

    /kafka/quotas/{user}/{client}      ->  [1, {name: rate}]        a part is - (none), * (the default), or = and a name
    /kafka/address-quotas/{address}    ->  [1, {name: rate}]        * or = and an IP address
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from urllib.parse import quote, unquote

from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import pack, unpack
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.shared_rows import RowStores, SharedRows

log = logging.getLogger("region_node.kafka")

QUOTAS, ADDRESSES = "/kafka/quotas/", "/kafka/address-quotas/"
PRODUCE, FETCH, REQUEST, MUTATION = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
CONNECTIONS = "connection_creation_rate"
_WHOLE = {PRODUCE: "Long", FETCH: "Long", CONNECTIONS: "Integer"}
"""Quotas that are whole numbers, and Kafka's word for these."""
OF_CLIENTS, OF_ADDRESSES = (PRODUCE, FETCH, REQUEST, MUTATION), (CONNECTIONS,)
NONE, DEFAULT = "-", "*"
ADDRESS = "address"
"""The first part of an entity that is an address; no user is written so."""
Entity = tuple[str, str]
"""(user, client), each as a part of the key; or (ADDRESS, address)."""


def named(name: str | None) -> str:
    """Returns a name as a part of an entity, quoted behind `=`; None: the default."""
    return DEFAULT if name is None else "=" + quote(name, safe="")


def name_of(part: str) -> str | None:
    """The reverse, of a part that is there."""
    return None if part == DEFAULT else unquote(part[1:])


class QuotaTable:
    """`changed` is called after each change. `version` grows with each. `addresses`: whether there are quotas of them.
    Make it on the event loop.
    """

    def __init__(self, stores: RowStores, changed: Callable[[], None]) -> None:
        self._on_change = changed
        self.rows: dict[Entity, dict[str, float]] = {}
        self.active = self.addresses = False
        self.version = 0
        self.shared = SharedRows(stores, (QUOTAS, ADDRESSES), self._on_key)

    def close(self) -> None:
        self.shared.close()

    def _on_key(self, key: str) -> None:
        value = self.shared.get(key)
        if key.startswith(ADDRESSES):
            entity = (ADDRESS, key.removeprefix(ADDRESSES))
        else:
            user, _, client = key.removeprefix(QUOTAS).partition("/")
            entity = (user, client)
        if value is None:
            self.rows.pop(entity, None)
        else:
            try:
                self.rows[entity] = _read(value)
            except CorruptData as error:  # the one that was known before holds on
                log.warning("kafka.quota_unreadable", extra={"key": key, "error": str(error)})
        self.addresses = any(entity[0] == ADDRESS for entity in self.rows)
        self.active = any(entity[0] != ADDRESS for entity in self.rows)
        self.version += 1
        self._on_change()

    def rate(self, name: str, whole: Entity) -> tuple[float, Entity] | None:
        """(a second, who shares it): of the most particular quota."""
        user, client = whole
        for entry in (
            *((user, client), (user, DEFAULT), (user, NONE)),
            *((DEFAULT, client), (DEFAULT, DEFAULT), (DEFAULT, NONE)),
            *((NONE, client), (NONE, DEFAULT)),
        ):
            rate = self.rows.get(entry, {}).get(name)
            if rate is not None:
                return rate, (user if entry[0] != NONE else NONE, client if entry[1] != NONE else NONE)
        return None

    def address_rate(self, address: str) -> tuple[float, Entity] | None:
        """The same of connections from an address, each of which has its own."""
        own = (ADDRESS, named(address))
        rate = self.rows.get(own, {}).get(CONNECTIONS) or self.rows.get((ADDRESS, DEFAULT), {}).get(CONNECTIONS)
        return None if rate is None else (rate, own)

    async def change(self, entity: Entity, changes: dict[str, float | None]) -> None:
        """Sets quotas; None takes one away. Raises VersionConflict where others change it again and again, and what the
        metadata and the configuration raise.
        """
        key = ADDRESSES + entity[1] if entity[0] == ADDRESS else QUOTAS + "/".join(entity)

        def changed(before: bytes | None) -> bytes | None:
            values = {**({} if before is None else _read(before)), **changes}
            rates = {name: rate for name, rate in values.items() if rate is not None}
            return pack([rates]) if rates else None

        await self.shared.change(key, changed)


def _read(blob: bytes) -> dict[str, float]:
    rates = unpack("client quota", blob)[0]
    if not isinstance(rates, dict) or not all(
        isinstance(name, str) and isinstance(rate, (int, float)) and rate > 0 for name, rate in rates.items()
    ):
        raise CorruptData("client quota: expected rates above 0 by their names")
    return {name: float(rate) for name, rate in rates.items()}


def check(entity: Entity, name: str, rate: float | None) -> None:
    """rate None: it is taken away. Raises Refused, in Kafka's words."""
    if name not in (OF_ADDRESSES if entity[0] == ADDRESS else OF_CLIENTS):
        raise Refused(Code.INVALID_REQUEST, f"Invalid configuration key {name}")
    if rate is None:
        return
    if not 0 < rate <= 1e18:
        raise Refused(
            Code.INVALID_REQUEST, f"Quota {name} must be greater than 0, and a number that can be kept, not {rate}"
        )
    if name in _WHOLE and rate != int(rate):
        raise Refused(Code.INVALID_REQUEST, f"{name} must be a {_WHOLE[name]} value, not {rate}")
