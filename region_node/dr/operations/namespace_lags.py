"""Lags of many namespaces at once: what a region published of each that another one lacks, or lacks itself.

Is: the numbers of `region_node.dr.operations.namespace_facts`, without what only the step of an operation reads, so
that hundreds of namespaces are one answer. Isn't: a decision.
Invariants: as there: a topic that no broker has loaded is in `missing`, never counted as nothing; a namespace is a few
hundred bytes of an answer, however many topics it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import msgspec

from heliograph.runtime.throttle import RowPace, pause
from region_node.dr.operations import namespace_facts

NOT_IN, LACKING = "not_in", "lacking"
"""What may be asked of a region: {namespace: the other region} each."""
_LOOKS = {NOT_IN: namespace_facts.not_in, LACKING: namespace_facts.lacking_loaded}
_HIGHEST = frozenset({"age_s", "age_s_max", "silent_s", "unheard_s"})
"""Of several brokers' numbers of one namespace the highest counts; others are added up."""
NAMED = 20
"""So many topics of a namespace are named in each of its lists; `counts` says how many there are."""
NAMES_MAX = 50_000
"""A broker names so many topics that it has loaded, some MB; of namespaces beyond that it says how many they are."""
_AT_ONCE = 256
"""Topics between two pauses."""


class _Published(TypedDict):
    """What is read of `namespace_facts.not_in`."""

    missing: list[str]
    down: list[str]
    uncounted: list[str]
    messages: int
    bytes: int
    age_s: float
    counts: NotRequired[dict[str, int]]
    unlisted: NotRequired[str]


class _Lacks(TypedDict):
    """What is read of `namespace_facts.lacking`."""

    missing: list[str]
    unheard: list[str]
    told: int
    messages: int
    bytes: int
    age_s_max: float
    silent_s: float
    unheard_s: float
    unopened_topics: NotRequired[int]
    untold: NotRequired[str]
    counts: NotRequired[dict[str, int]]
    unlisted: NotRequired[str]


class _BrokerLoad(TypedDict):
    broker: str
    cpu: float | None
    memory: float | None


class _BookieLoad(TypedDict):
    bookie: str
    writable: bool
    free_bytes: int | None
    disk: float | None


class _Load(TypedDict):
    brokers: list[_BrokerLoad]
    bookies: list[_BookieLoad]


class _Answer(TypedDict):
    not_in: dict[str, Any]
    lacking: dict[str, Any]
    topics: dict[str, int]
    load: NotRequired[_Load | None]


_READ: Mapping[str, Any] = {NOT_IN: _Published, LACKING: _Lacks}


async def checked(answer: Any) -> dict[str, Any]:
    """What is read of a region's answer, each in its type. Raises ValueError where it is another one: whatever has an
    address may answer there.
    """
    found: dict[str, Any] = msgspec.convert(answer, _Answer)
    pace = RowPace()
    for what, kind in _READ.items():
        for namespace, lag in found[what].items():
            await pace.row()
            found[what][namespace] = msgspec.convert(lag, kind)
    return found


async def of_broker(
    asked: Mapping[str, Mapping[str, str]],
    topics: Mapping[str, Mapping[str, Any]],
    names_max: int = NAMES_MAX,
    *,
    unopened: Mapping[str, Any],
) -> dict[str, Any]:
    """One broker's. topics: namespace -> topic's name -> `namespace_facts.lag_facts`, of what it has loaded. unopened:
    `namespace_facts.unopened_facts`.
    """
    found: dict[str, Any] = {what: {} for what in _LOOKS}
    pace = RowPace()
    for what, look in _LOOKS.items():
        for namespace, other in asked.get(what, {}).items():
            await pace.row()
            there = topics.get(namespace, {})
            names = sorted(there)
            lag = _short(look({"topics": {}, "missing": []}, other))
            for start in range(0, len(names), _AT_ONCE):
                part = {name: there[name] for name in names[start : start + _AT_ONCE]}
                lag = _joined([lag, _short(look({"topics": part, "missing": []}, other))])
                if start:
                    await pause()
            found[what][namespace] = lag
    said = dict[str, list[str] | int]()
    for namespace, there in topics.items():
        await pace.row()
        said[namespace] = sorted(there) if len(there) <= names_max else len(there)
        names_max -= len(there) if len(there) <= names_max else 0
    return {**found, "topics": said, "unopened": unopened}


async def merged(
    parts: Sequence[Mapping[str, Any]],
    names: Mapping[str, Sequence[str] | str],
    sources: Mapping[str, str],
) -> dict[str, Any]:
    """One region's, from its brokers' own. names: every topic that it has, of each namespace that it knows, or why they
    could not be listed; of other namespaces nothing is said. sources: namespace -> the region whose messages it may
    lack.
    """
    unopened = namespace_facts.merged_unopened(parts)
    out: dict[str, Any] = {what: {} for what in _LOOKS}
    out["topics"] = {}
    pace = RowPace()
    for namespace, there in names.items():
        await pace.row()
        loaded = [part["topics"].get(namespace, []) for part in parts]
        missing, count = _missing(loaded, there)
        out["topics"][namespace] = count + sum(one if isinstance(one, int) else len(one) for one in loaded)
        for what in _LOOKS:
            if lags := [part[what][namespace] for part in parts if namespace in part[what]]:
                lag = _joined(lags)
                out[what][namespace] = {
                    **lag,
                    "missing": missing,
                    "counts": {**lag["counts"], "missing": count},
                    "unlisted": there if isinstance(there, str) else "",
                }
                if what == LACKING:
                    out[what][namespace] = namespace_facts.with_unopened(
                        out[what][namespace], unopened, namespace, sources[namespace]
                    )
    return out


def _missing(loaded: Sequence[Sequence[str] | int], there: Sequence[str] | str) -> tuple[list[str], int]:
    """Some of the topics that no broker has loaded, and how many they are. Where a broker names none they are told
    apart by their number alone.
    """
    if isinstance(there, str):
        return [], 0
    named = {name for names in loaded if not isinstance(names, int) for name in names}
    if unnamed := sum(names for names in loaded if isinstance(names, int)):
        count = max(0, len(there) - unnamed - len(named))
        return [f"{count} topics"] if count else [], count
    left = sorted(set(there) - named)
    return left[:NAMED], len(left)


def _short(lag: Mapping[str, Any]) -> dict[str, Any]:
    """Lists by their length and a few names."""
    lists = {key: value for key, value in lag.items() if isinstance(value, list)}
    counts = {key: len(value) for key, value in lists.items()}
    return {**lag, **{key: value[:NAMED] for key, value in lists.items()}, "counts": counts}


def _joined(lags: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = dict(lags[0])
    for more in lags[1:]:
        found = {key: _sum(key, old, more[key]) for key, old in found.items()}
    return found


def _sum(key: str, old: Any, more: Any) -> Any:
    if isinstance(old, dict):
        return {name: count + more[name] for name, count in old.items()}
    if isinstance(old, list):
        return (old + more)[:NAMED]
    return max(old, more) if key in _HIGHEST else old + more
