"""Streams of messages while a test breaks something: whether links have drained, whether every region has the same."""

from __future__ import annotations

from collections.abc import Callable

from geo_tests.wan.instance import Instance, eventually
from region_node.chaos.streams import NumberedStream


def drained(instance: Instance, topic: str) -> bool:
    """Between all regions, each way. A link that is not open yet may not know what it has left."""
    rows, regions = instance.links(topic), len(instance.state["regions"])
    return len(rows) == regions * (regions - 1) and all(
        row["connected"] and row["backlog_messages"] == 0 for row in rows.values()
    )


def assert_same_everywhere(instance: Instance, topic: str, streams: list[NumberedStream]) -> None:
    for stream in streams:
        stream.finish()
    eventually(lambda: drained(instance, topic), "links drained")
    for region in ("us", "eu"):
        copy = instance.read_all(region, topic)
        for stream in streams:
            assert [b for b in copy if b.startswith(stream.name)] == stream.bodies(), (
                f"{stream.name}'s messages in {region}"
            )
        assert len(copy) == sum(s.sent for s in streams)


def cut(instance: Instance) -> Callable[[], None]:
    proxies = instance.proxies("link", "us", "eu") + instance.proxies("link", "eu", "us")
    for proxy in proxies:
        instance.toxiproxy.cut(proxy.name)
    return lambda: [instance.toxiproxy.heal(p.name) for p in proxies]  # type: ignore[return-value,func-returns-value]
