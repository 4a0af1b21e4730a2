"""BrokerGauge: what a broker measures of itself for its load report.

Is: the sums of its loaded topics by bundle, in slices of the loop's time, and the shares of core and memory in use. Isn't: the load score (`load`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from heliograph.model.bundles import BundleTable
from heliograph.runtime import usage
from heliograph.runtime.clock import Clock
from region_node.balance.load import Traffic
from region_node.balance.shedding import Bundle

if TYPE_CHECKING:
    from region_node.topics.topic import Topic

_SLICE = 1000
"""Topics that are summed up between two turns of the loop."""


class BrokerGauge:
    """bundles: of a namespace; None: it is not served."""

    def __init__(self, loaded: Mapping[str, Topic], bundles: Callable[[str], BundleTable | None], clock: Clock) -> None:
        self._loaded, self._bundles, self._clock = loaded, bundles, clock
        self._cpu_s, self._cpu_at = usage.cpu_s(), clock.monotonic()
        self._memory_bytes, self._core = usage.memory_limit_bytes(), min(1.0, usage.cores())
        self._sums: dict[Bundle, tuple[int, int, int, int, int]] = {}
        """Messages, bytes in, bytes out, topics, and clients' producers and consumers, of each bundle."""
        self._at = clock.monotonic()

    def used(self) -> dict[str, float]:
        """`cpu`: of one core, or of the part of one that its control group leaves it, since the last call; `memory`: of what this process may have."""
        cpu_s, now = usage.cpu_s(), self._clock.monotonic()
        share = (cpu_s - self._cpu_s) / max(1e-3, now - self._cpu_at) / self._core
        self._cpu_s, self._cpu_at = cpu_s, now
        return {"cpu": max(0.0, share), "memory": usage.resident_bytes() / self._memory_bytes if self._memory_bytes else 0.0}

    async def traffic(self) -> tuple[dict[Bundle, Traffic], tuple[float, float]]:
        """Of each bundle with loaded topics, since the last call; and bytes/s (in, out) of them all. A topic that came or went counts from then on."""
        sums: dict[Bundle, list[int]] = {}
        tables: dict[str, BundleTable | None] = {}
        for at, topic in enumerate(list(self._loaded.values())):
            if at % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            namespace = topic.name.namespace
            if namespace not in tables:
                tables[namespace] = self._bundles(namespace)
            if (table := tables[namespace]) is None:
                continue
            row = sums.setdefault((namespace, table.of(topic.text)), [0, 0, 0, 0, 0])
            row[0] += topic.messages_in
            row[1] += topic.bytes_in
            row[3] += 1
            row[4] += len(topic.producers.producers)
            for subscription in topic.subscriptions.values():
                row[0] += subscription.messages_out
                row[2] += subscription.bytes_out
                row[4] += len(subscription.consumers)
                for consumer in subscription.consumers:
                    row[0] += consumer.messages_out
                    row[2] += consumer.bytes_out
        now = self._clock.monotonic()
        elapsed, self._at = max(1e-3, now - self._at), now
        before, self._sums = self._sums, {bundle: (row[0], row[1], row[2], row[3], row[4]) for bundle, row in sums.items()}
        found: dict[Bundle, Traffic] = {}
        total_in = total_out = 0.0
        for bundle, row_now in self._sums.items():
            messages, bytes_in, bytes_out, topics, sessions = row_now
            was = before.get(bundle, row_now)  # what it carried before it came is not ours
            in_s, out_s = max(0, bytes_in - was[1]) / elapsed, max(0, bytes_out - was[2]) / elapsed
            found[bundle] = Traffic(max(0, messages - was[0]) / elapsed, in_s + out_s, topics, sessions)
            total_in, total_out = total_in + in_s, total_out + out_s
        return found, (total_in, total_out)
