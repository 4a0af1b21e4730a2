"""What can be wrong with a way between two ends, as Toxiproxy's toxics: delay, its variation, a rate; and which proxies
a way has.

Is: values, and the choice of toxics. Isn't: a call to Toxiproxy (`toxiproxy_api`), time, or what is wrong now
(`wide_area`). A *way* is everything between two ends: connections that either opens to the other, both streams of each.
An end is a region, a witness, or, where an instance is `proxied`, `clients` (of a region's brokers, or of one), and
`brokers` (of a region's bookies, or of one). A *side* is one stream of one proxy: bytes in one direction.
Source: Toxiproxy 2.5, toxics/latency.go, toxics/bandwidth.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heliograph.model.errors import ConfigError
from region_node.instance.nodes.toxiproxy_api import LINGER, STREAMS, Proxy, Stream, Toxic
from region_node.instance.plan.layout import BROKERS, CLIENTS, InstancePlan, WanLink

Side = tuple[str, Stream]
"""A proxy's name, and which of its streams: `upstream` is from who opened the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFault:
    """What is not None is set. latency_ms, jitter_ms: of a round trip, or of one direction where only that is meant.
    bandwidth_kb_s: thousands of bytes a second, of each connection, in each direction that is meant. reset_after_ms:
    so long a connection lasts at most.
    """

    latency_ms: int | None = None
    jitter_ms: int | None = None
    bandwidth_kb_s: int | None = None
    reset_after_ms: int | None = None


def way(plan: InstancePlan, source: str, target: str) -> list[WanLink]:
    """The proxies between two ends, of both directions. Raises ConfigError with what there is, or what to start."""
    near = {CLIENTS: "what clients open to brokers", BROKERS: "what brokers open to bookies"}
    ends = {source, target}
    found = [x for x in plan.links if ends == {x.source, x.target} or (x.source in near and ends == {x.source, x.node})]
    if found:
        return found
    _check_ends(plan, source, target)
    for name, what in near.items():
        if name in ends and not plan.proxied:
            raise ConfigError(
                f"{what} goes through no proxy here, so nothing can be wrong with it: begin an instance with "
                "`heliograph up --proxied` in a folder of its own (--data)"
            )
    if plan.wan == "none":
        raise ConfigError(
            "what the regions of this instance open to each other goes through no proxy (it was begun with --wan none, "
            "or has one region): begin one with `heliograph up --wan default` in a folder of its own (--data)"
        )
    raise ConfigError(f"between {source} and {target} nobody opens a connection")


def _check_ends(plan: InstancePlan, source: str, target: str) -> None:
    """Raises ConfigError where one of them is none, or they are no two ends of anything."""
    regions, nodes = list(plan.voters()), [n for r in plan.regions for n in (*r.brokers, *r.bookies)]
    for name in (source, target):
        if name not in (*regions, CLIENTS, BROKERS) and name not in (n.name for n in nodes):
            raise ConfigError(
                f"no region {name!r} here: a way is between two of {', '.join(regions)}, between `{CLIENTS}` and a "
                f"region or a broker, or between `{BROKERS}` and a region or a bookie"
            )
    for name in (source, target):
        other = target if name == source else source
        role = next((n.roles[0] for n in nodes if n.name == name), "")
        wanted = {"broker": CLIENTS, "bookie": BROKERS}.get(role, other)
        if other != wanted:
            raise ConfigError(f"{name} is a {role}: the way to it is `{wanted} {name}`")
    if source == target:
        raise ConfigError(f"a way is between two ends, and {source} was given twice")


def sides(links: list[WanLink], source: str, *, one_way: bool) -> list[Side]:
    """Both streams of each proxy; one_way: those that carry bytes away from `source`."""
    return [
        (link.name, stream)
        for link in links
        for stream in STREAMS
        if not one_way or (stream == "upstream") == _opens(link, source)
    ]


def opened(links: list[WanLink], source: str, *, one_way: bool) -> list[str]:
    """Proxies of connections that are opened there; one_way: that `source` opens."""
    return [link.name for link in links if not one_way or _opens(link, source)]


def _opens(link: WanLink, end: str) -> bool:
    return end == link.source


def usual(link: WanLink, stream: Stream) -> list[Toxic]:
    """What a side has while nothing is wrong: its share of the round trip that the instance was begun with."""
    if not link.round_trip_ms and not link.jitter_ms:
        return []
    return [_latency(stream, link.round_trip_ms // 2, link.jitter_ms // 2)]


def toxics(link: WanLink, stream: Stream, fault: NetworkFault, *, one_way: bool) -> list[Toxic]:
    """What a side has under the fault; what that leaves open is as usual. Raises ConfigError."""
    made = usual(link, stream)
    if fault.latency_ms is not None or fault.jitter_ms is not None:
        latency = link.round_trip_ms // 2 if fault.latency_ms is None else _share(fault.latency_ms, stream, one_way)
        jitter = _share(fault.jitter_ms or 0, stream, one_way)
        if jitter > latency:
            raise ConfigError(
                f"--jitter: a delay of {latency} ms in one direction cannot vary by {jitter} ms: give a --latency that "
                "is at least as long"
            )
        made = [_latency(stream, latency, jitter)]
    if fault.bandwidth_kb_s is not None:
        made.append(Toxic(f"bandwidth_{stream}", "bandwidth", stream, {"rate": fault.bandwidth_kb_s}))
    return made


def _share(ms: int, stream: Stream, one_way: bool) -> int:
    """Half of a round trip, and the odd millisecond on the way there."""
    return ms if one_way else (ms - ms // 2 if stream == "upstream" else ms // 2)


def _latency(stream: Stream, latency_ms: int, jitter_ms: int) -> Toxic:
    return Toxic(f"latency_{stream}", "latency", stream, {"latency": latency_ms, "jitter": jitter_ms})


def row(link: WanLink, stream: Stream, proxy: Proxy, reset_after_ms: int | None, ends_in_s: float | None) -> Any:
    """What one side is like now, for `wan show`; a rate in kbit/s. `usual`: nothing is wrong with it."""
    there = [toxic for toxic in proxy.toxics if toxic.stream == stream and toxic.name != LINGER]
    named = {toxic.name: toxic.attributes for toxic in there}
    latency, rate = named.pop(f"latency_{stream}", {}), named.pop(f"bandwidth_{stream}", None)
    other = link.node if link.source in (CLIENTS, BROKERS) else link.target
    ends = (link.source, other) if stream == "upstream" else (other, link.source)
    return {
        "from": ends[0],
        "to": ends[1],
        "kind": link.kind,
        "node": link.node,
        "opened_by": link.source,
        "proxy": link.name,
        "one_way_ms": latency.get("latency", 0),
        "jitter_ms": latency.get("jitter", 0),
        "bandwidth_kbit": rate["rate"] * 8 if rate else None,
        "reset_after_ms": reset_after_ms,
        "cut": not proxy.enabled,
        "other": sorted(named),
        "usual": proxy.enabled and there == usual(link, stream) and reset_after_ms is None,
        "ends_in_s": ends_in_s,
    }
