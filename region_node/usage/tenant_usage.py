"""Usage of each tenant: messages and bytes in and out, and bytes stored, since this broker started.

Is: sums over topics, as their counters grow. Isn't: a quota, or a bill: what several brokers counted is added by who
asks, and a restart begins at 0 as a counter does.
Invariants: one addition a run of messages, none for a message; a sum never falls. A publish counts when it is taken
from a client, a delivery when it is handed to one, redeliveries too; replication between regions is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class TenantUsage:
    """`storage_bytes`: of the ledgers that are open here, and, at the broker that counts those
    (`region_node.usage.stored_bytes`), of all closed ones of the region; before replication to other bookies.
    """

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    storage_bytes: int = 0


class Usage:
    """Sums what one broker counted, by tenant, since it started."""

    def __init__(self) -> None:
        self._tenants: dict[str, TenantUsage] = {}
        self._open: Mapping[str, int] = {}
        self._closed: Mapping[str, int] = {}

    def of(self, tenant: str) -> TenantUsage:
        """The tenant's sums, to add to."""
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = TenantUsage()
        return found

    def stored(self, sizes: Mapping[str, int]) -> None:
        """By tenant: bytes of the ledgers that are open here."""
        self._open = sizes
        self._add_up()

    def closed(self, sizes: Mapping[str, int]) -> None:
        """By tenant: bytes of all closed ledgers of the region; {} where another broker counts them."""
        self._closed = sizes
        self._add_up()

    def open_bytes(self, tenant: str) -> int:
        return self._open.get(tenant, 0)

    def _add_up(self) -> None:
        for sums in self._tenants.values():
            sums.storage_bytes = 0
        for sizes in (self._open, self._closed):
            for tenant, size in sizes.items():
                self.of(tenant).storage_bytes += size

    def rows(self) -> dict[str, dict[str, int]]:
        return {tenant: asdict(self._tenants[tenant]) for tenant in sorted(self._tenants)}


def added(tables: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, int]]:
    """What several brokers counted, together."""
    out: dict[str, dict[str, int]] = {}
    for table in tables:
        for tenant, row in table.items():
            sums = out.setdefault(tenant, asdict(TenantUsage()))
            for name in sums:
                sums[name] += int(row.get(name, 0))
    return dict(sorted(out.items()))


def samples(region: str, usage: Usage) -> Iterable[tuple[str, str, Mapping[str, str], float]]:
    """Yields (name, kind, labels, value) of each tenant that something was counted for, for /metrics."""
    for tenant, row in usage.rows().items():
        labels = {"cluster": region, "tenant": tenant}
        for name, metric in (
            ("messages_in", "in_messages"),
            ("bytes_in", "in_bytes"),
            ("messages_out", "out_messages"),
            ("bytes_out", "out_bytes"),
        ):
            yield f"heliograph_tenant_{metric}_total", "counter", labels, row[name]
        yield "heliograph_tenant_storage_bytes", "gauge", labels, row["storage_bytes"]
