"""Facts: what a region knows of one namespace's topics: what other regions lack, what it lacks, its subscriptions, its
own end.

Is: numbers of the topics that one broker has loaded, the sum of several brokers, and counting the tail that another
region lacks. Isn't: a decision.
Invariants: a topic that no broker has loaded is named in `missing`, never counted as nothing; what a region says of
another one stands beside how long nothing was heard of that one (`silent_s`), where that is more than SILENT_S.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from heliograph.model.coordinates import Origin, format_coordinate, parse_coordinate
from heliograph.model.errors import NotAllowed
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.run import FLAG_HIDDEN, Run
from region_node.topics.topic import Topic
from replicator.health.incoming_stats import SILENT_S, IncomingStats
from replicator.health.unopened_topics import FORGET_S
from replicator.log.replicated_log import ReplicatedLog
from replicator.manager.link_manager import LinkManager

_CLOCKS_S = 1.0
"""What an age that a region's broker has told may be wrong by: it is as old as the answer, and counts from when another
broker of that region may have stamped it.
"""
_READ_ENTRIES, _READ_BYTES = 2048, 4 << 20

Span = tuple[Origin, Position, Position]
"""(origin, after, through]: in the origin's own positions."""


def topic_facts(topic: Topic, links: LinkManager, now_ms: int) -> dict[str, Any]:
    log = cast(ReplicatedLog, topic.log)
    sync = log.syncing
    return {
        "vector": {_text(origin): list(log.vector.prefix(origin)) for origin in log.vector},
        "missing": {
            _text(origin): found
            for origin in log.vector
            if (found := [[list(a), list(b)] for a, b in log.vector.missing(origin)])
        },
        **lag_facts(topic, links, now_ms),
        "subscriptions": {}
        if sync is None
        else {name: sync.status(name, now_ms) for name in topic.subscriptions if sync.enabled(name)},
        "producers": len(topic.producers.producers),
        "consumers": sum(len(subscription.consumers) for subscription in topic.subscriptions.values()),
        "entries": log.ledger.entries,
        "bytes": log.ledger.size_bytes,
        "backlog": {
            name: subscription.cursor.backlog_entries
            for name, subscription in topic.subscriptions.items()
            if subscription.durable
        },
    }


def lag_facts(topic: Topic, links: LinkManager, now_ms: int) -> dict[str, Any]:
    """What `not_in` and `lacking` read of a topic."""
    return {
        "links": link_facts(topic, links),
        "lacks": lack_facts(cast(ReplicatedLog, topic.log), now_ms),
        "shadow": topic.shadow_of,
        "loaded_s": max(0.0, (now_ms - topic.loaded_ms) / 1000),
        "only": list(topic.policies.values.get("replication") or ()) or None,
    }


def link_facts(topic: Topic, links: LinkManager) -> dict[str, dict[str, Any]]:
    """What each target lacks of the topic, and how its link is."""
    return {
        link.target: {
            "connected": link.connected,
            "cause": link.cause,
            "entries": link.backlog_entries,
            "messages": link.backlog_messages,
            "bytes": link.backlog_bytes,
            "age_s": link.age_s,
            "silent_s": link.silent_s,
        }
        for link in links.stats(topic.text)
    }


def lack_facts(log: ReplicatedLog, now_ms: int) -> dict[str, dict[str, Any]]:
    """What the topic lacks of each source here."""
    return {region: link.status(now_ms) for region, link in sorted(log.incoming.items())}


def unopened_facts(incoming: IncomingStats, namespaces: Collection[str], now_ms: int, now: float) -> dict[str, Any]:
    """What the brokers of each region told this one of topics that may not be here at all: region -> broker -> how long
    ago, whether that was all, and what of each of the namespaces. now_ms: the wall clock's, now: the monotonic one's.
    """
    return {
        region: {
            broker: {
                "ago_s": max(0.0, now - at),
                "whole": told.whole,
                "namespaces": {
                    name: {
                        "topics": row.topics,
                        "messages": row.messages,
                        "bytes": row.size_bytes,
                        "age_s": max(0.0, (now_ms - (row.oldest_ms - heard.clock_offset_ms)) / 1000),
                    }
                    for name, row in told.rows.items()
                    if name in namespaces
                },
            }
            for broker, (at, told) in heard.unopened.told.items()
        }
        for region, heard in incoming.regions.items()
    }


def merged_unopened(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """One region's, from its brokers' `unopened_facts`: each broker of another region by what it told last. None: a
    broker here is of a version that does not say.
    """
    out: dict[str, dict[str, Any]] = {}
    for part in parts:
        if (found := part.get("unopened")) is None:
            return None
        for region, brokers in found.items():
            newest = out.setdefault(region, {})
            for broker, told in brokers.items():
                if broker not in newest or told["ago_s"] < newest[broker]["ago_s"]:
                    newest[broker] = told
    for brokers in out.values():
        last_s = min((told["ago_s"] for told in brokers.values()), default=0.0)
        for broker in [broker for broker, told in brokers.items() if told["ago_s"] > last_s + FORGET_S]:
            del brokers[broker]
    return out


def with_unopened(lag: Mapping[str, Any], unopened: Mapping[str, Any] | None, namespace: str, source: str) -> Any:
    """`lag`, of `lacking_loaded`, and what lies in topics that only `source` has. unopened_topics: how many these are.
    untold: why there may be more of them; "": there are no others.
    """
    brokers = {} if unopened is None else unopened.get(source, {})
    rows = [row for told in brokers.values() if (row := told["namespaces"].get(namespace)) is not None]
    out = {**lag, "unopened_topics": sum(row["topics"] for row in rows), "untold": ""}
    for key in ("messages", "bytes"):
        out[key] += sum(row[key] for row in rows)
    out["age_s_max"] = max([out["age_s_max"], *(row["age_s"] for row in rows)])
    if not brokers:
        out["untold"] = f"{source} did not say which topics it alone has"
    elif not all(told["whole"] for told in brokers.values()):
        out["untold"] = f"{source} has more topics that it alone has than it says"
    last_s = min((told["ago_s"] for told in brokers.values()), default=0.0)
    if last_s > SILENT_S:
        out["silent_s"] = max(out["silent_s"], last_s)
    return out


def merged(
    region: str, parts: Sequence[Mapping[str, Any]], names: Iterable[str], namespace: str = ""
) -> dict[str, Any]:
    """One region's, from its brokers' own. names: every topic that it has, of `namespace`."""
    topics: dict[str, Any] = {}
    for part in parts:
        topics.update(part["topics"])
    missing = sorted(name for name in names if name not in topics)
    return {
        "region": region,
        "namespace": namespace,
        "topics": topics,
        "missing": missing,
        "unopened": merged_unopened(parts),
    }


def _linked(facts: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The topics that have links of their own: of a shadow topic its source has them. By name."""
    return [(name, topic) for name, topic in sorted(facts["topics"].items()) if not topic.get("shadow")]


def _stays(topic: Mapping[str, Any], region: str) -> bool:
    """A policy of the topic leaves that region out."""
    only = topic.get("only")
    return only is not None and region not in only


def own_affair(facts: Mapping[str, Any], target: str) -> list[str]:
    """Topics that `target` is to have nothing of: shadows, and those that a policy keeps from it."""
    return [name for name, topic in facts["topics"].items() if topic.get("shadow") or _stays(topic, target)]


def not_in(facts: Mapping[str, Any], target: str) -> dict[str, Any]:
    """What `target` lacks of what the region of `facts` published. down: topics whose link is not connected; silent_s:
    the longest time in which nothing was heard of `target`, so that it may have more than it is said to have; stays:
    topics that never go there, by policy; uncounted: topics without a link, in no number.
    """
    out: dict[str, Any] = {
        "topics": 0,
        "entries": 0,
        "messages": 0,
        "bytes": 0,
        "age_s": 0.0,
        "silent_s": 0.0,
        "down": [],
        "stays": [],
        "uncounted": [],
        "missing": list(facts["missing"]),
    }
    for name, topic in _linked(facts):
        link = topic["links"].get(target)
        if link is None and _stays(topic, target):
            out["stays"].append(name)
            continue
        if link is None:
            out["uncounted"].append(name)
        if link is None or not link["connected"]:
            out["down"].append(name if link is None else f"{name} ({link['cause']})")
        if link is not None:
            out["silent_s"] = max(out["silent_s"], _silence(link))
        if link is not None and link["entries"]:
            out["topics"] += 1
            for key in ("entries", "messages", "bytes"):
                out[key] += link[key]
            out["age_s"] = max(out["age_s"], link["age_s"])
    return out


def newer(lag: Mapping[str, Any], since_s: float) -> bool:
    """Whether all that is on its way, as `not_in` says, was published within the last `since_s`. (Where producers go
    on publishing, there is always something.) since_s: by a monotonic clock; the age is by the wall clocks of the
    region that published it, so that no clock is compared with another region's.
    """
    age_s: float = lag["age_s"]
    return age_s + _CLOCKS_S < since_s


def cut_off(facts: Mapping[str, Any], regions: Iterable[str]) -> dict[str, list[str]]:
    """Region -> topics whose link to it, from the region of `facts`, is not connected; of regions without such a topic
    nothing.
    """
    out = {
        region: [
            f"{name} ({link['cause']})"
            for name, topic in _linked(facts)
            if (link := topic["links"].get(region)) is not None and not link["connected"]
        ]
        for region in regions
    }
    return {region: names for region, names in out.items() if names}


def lacking(facts: Mapping[str, Any], source: str) -> dict[str, Any]:
    """What the region of `facts` knows that it lacks of what `source` published: in the topics that it has loaded, and
    in those that it does not have at all.
    """
    found: dict[str, Any] = with_unopened(
        lacking_loaded(facts, source), facts.get("unopened"), facts.get("namespace", ""), source
    )
    return found


def lacking_loaded(facts: Mapping[str, Any], source: str) -> dict[str, Any]:
    """What it lacks in the topics that it has loaded. silent_s: the longest time in which
    nothing was heard of `source`: what it published since may be missing, too. unheard: topics of which `source` never
    told anything, since their brokers here loaded them: the first of them `unheard_s` ago. told: topics of which it
    told something; where there is none, topics that are in `source` alone may be all there is.
    """
    out: dict[str, Any] = {
        "topics": 0,
        "told": 0,
        "messages": 0,
        "bytes": 0,
        "age_s_max": 0.0,
        "silent_s": 0.0,
        "unheard": [],
        "unheard_s": 0.0,
        "missing": list(facts["missing"]),
    }
    for name, topic in _linked(facts):
        told = topic["lacks"].get(source)
        if told is None and _stays(topic, source):
            continue
        if told is not None:  # also where its first number never came
            out["silent_s"] = max(out["silent_s"], _silence(told))
        if told is None or told["messages"] is None:
            out["unheard"].append(name)
            out["unheard_s"] = max(out["unheard_s"], topic.get("loaded_s", 0.0))
            continue
        out["told"] += 1
        if not told.get("told", True):  # its number is of an earlier connection: not all there is, and not nothing
            out["unheard"].append(name)
        out["topics"] += bool(told["messages"])
        out["messages"] += told["messages"]
        out["bytes"] += told["bytes"]
        out["age_s_max"] = max(out["age_s_max"], told["age_s_max"] or 0.0)
    return out


def waited_s(facts: Mapping[str, Any], source: str) -> float:
    """How old the oldest message of `source` that is not here was when `source` was heard last."""
    told = [found for _, topic in _linked(facts) if (found := topic["lacks"].get(source)) is not None]
    alone: list[float] = [
        row["age_s"] - broker["ago_s"]
        for broker in ((facts.get("unopened") or {}).get(source) or {}).values()
        for row in broker["namespaces"].values()
    ]
    return max([0.0, *alone, *((found.get("age_s") or 0.0) - (found.get("silent_s") or 0.0) for found in told)])


def _silence(told: Mapping[str, Any]) -> float:
    """How old that is which is told of a region; 0.0: as good as now. A region of an earlier version does not say."""
    silent_s: float = told.get("silent_s") or 0.0
    return silent_s if silent_s > SILENT_S or not told["connected"] else 0.0


def out_of_step(
    source: Mapping[str, Any], target: Mapping[str, Any], source_name: str, target_name: str, since_s: float = 0.0
) -> list[str]:
    """Replicated subscriptions of which `target` has not taken in everything that was acknowledged more than `since_s`
    ago. (Where consumers go on acknowledging, there is always something newer.)
    """
    out: list[str] = []
    for name, topic in _linked(source):
        if _stays(topic, target_name):
            continue
        there = target["topics"].get(name, {}).get("subscriptions", {})
        for subscription, here in sorted(topic["subscriptions"].items()):
            found = there.get(subscription)
            age_s = here.get("age_s")
            told = (here["in_step"] or (age_s is not None and age_s + _CLOCKS_S < since_s)) and here["told"].get(
                target_name
            )
            taken = (
                found is not None
                and found.get("applied", found["in_step"])
                and found["heard"].get(source_name) == here["claims"]
            )
            if taken and "parts" in here and "heard_parts" in found:  # both regions are of a version that tells of them
                taken = found["heard_parts"].get(source_name) == here["parts"]
            if not (told and taken):
                out.append(f"{subscription} of {name}")
    return out


def tail_spans(topic: Topic, boundary: Mapping[str, list[int]]) -> list[Span]:
    """What was first published here and lies above `boundary` (origin -> the last position that the other region
    held).
    """
    log = cast(ReplicatedLog, topic.log)
    out: list[Span] = []
    starts = BEFORE_ALL
    for origin, end in [*log.state.past, (log.state.origin, log.ledger.last_confirmed)]:
        known = boundary.get(_text(origin))
        if (after := max(starts, BEFORE_ALL if known is None else (known[0], known[1]))) < end:
            out.append((origin, after, end))
        starts = end
    return out


async def counted(topic: Topic, spans: Iterable[Span], spent: Callable[[], bool]) -> dict[str, Any]:
    """The messages first published here that lie in `spans`, entry by entry. spent: asked after each read, ends it;
    `left` is then what was not read.
    """
    log = cast(ReplicatedLog, topic.log)
    out: dict[str, Any] = {"entries": 0, "messages": 0, "bytes": 0, "first": None, "last": None, "left": []}
    for origin, after, end in spans:
        reached = BEFORE_ALL if spent() and out["entries"] else await _count(log, origin, after, end, out, spent)
        if reached < end:
            out["left"].append(span_row((origin, max(after, reached), end)))
    return out


async def _count(
    log: ReplicatedLog, origin: Origin, after: Position, end: Position, out: dict[str, Any], spent: Callable[[], bool]
) -> Position:
    """Through which position it has counted; `end` where nothing more is there."""
    at = log.ledger.next_position(after)
    while at <= end:
        runs = await log.ledger.read(at, _READ_ENTRIES, _READ_BYTES)
        if not runs:
            break
        for ledger, first, run in runs:
            if (ledger, first) <= end:
                _add(
                    origin,
                    ledger,
                    first,
                    run if ledger < end[0] else run.cut(0, min(run.count, end[1] - first + 1)),
                    out,
                )
        ledger, first, run = runs[-1]
        if spent():
            return min(end, (ledger, first + run.count - 1))
        at = log.ledger.next_position((ledger, first + run.count - 1))
    return end


def span_row(span: Span) -> list[Any]:
    """As JSON has it; `span_of` reads it."""
    return [_text(span[0]), list(span[1]), list(span[2])]


def span_of(row: Any) -> Span:
    """Reads [origin, [ledger, entry], [ledger, entry]]: what lies behind the first position, up to the second. Raises
    NotAllowed.
    """
    try:
        text, (after, after_entry), (through, through_entry) = row
        origin, position = parse_coordinate(f"{text}:{through:d}:{through_entry:d}")
        return origin, (int(after), int(after_entry)), position
    except (TypeError, ValueError) as error:
        raise NotAllowed(f"{row!r:.100} is no span: write [origin, [ledger, entry], [ledger, entry]]") from error


def added(before: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Two counts of one topic, the later one's spans behind the other's."""
    sums = {key: before.get(key, 0) + more[key] for key in ("entries", "messages", "bytes")}
    return {**sums, "first": before.get("first") or more["first"], "last": more["last"] or before.get("last")}


def unsent(
    region: str, target: Mapping[str, Any], boundary: Mapping[str, Mapping[str, list[int]]]
) -> dict[str, list[list[Any]]]:
    """Topic -> spans above `boundary` of which the region of the facts `target` was told that they never come. region:
    the origins' number, and a dot.
    """
    out: dict[str, list[list[Any]]] = {}
    for name, topic in sorted(target["topics"].items()):
        known = boundary.get(name, {})
        for origin, ranges in sorted(topic.get("missing", {}).items()):
            if origin.startswith(region):
                held = tuple(known.get(origin, BEFORE_ALL))
                found = [
                    [origin, max(after, list(held)), through] for after, through in ranges if tuple(through) > held
                ]
                if found:
                    out.setdefault(name, []).extend(found)
    return out


def _add(origin: Origin, ledger: int, first: int, run: Run, out: dict[str, Any]) -> None:
    if run.origin is not None:
        return
    for index in range(run.count) if run.flags is not None else ():
        if run.flags is not None and run.flags[index] & FLAG_HIDDEN:  # a SKIP or a marker: nobody's message
            for start, stop in ((0, index), (index + 1, run.count)):
                if stop > start:
                    _add(origin, ledger, first + start, run.cut(start, stop), out)
            return
    out["entries"] += run.count
    out["messages"] += run.messages
    out["bytes"] += run.size_bytes
    out["first"] = out["first"] or format_coordinate((origin, (ledger, first)))
    out["last"] = format_coordinate((origin, (ledger, first + run.count - 1)))


def covers(vector: Mapping[str, list[int]], coordinate: str | None) -> bool:
    """Whether a region with that vector (as in `topic_facts`) holds the coordinate, or said why not."""
    if coordinate is None:
        return True
    origin, position = parse_coordinate(coordinate)
    found = vector.get(_text(origin))
    return found is not None and (found[0], found[1]) >= position


def _text(origin: Origin) -> str:
    return f"{origin[0]}.{origin[1]}.{origin[2]:x}"
