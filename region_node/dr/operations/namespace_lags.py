"""Lags of many namespaces at once: what a region published of each that another one lacks, or lacks itself.

Is: the numbers of `region_node.dr.operations.namespace_facts`, without what only the step of an operation reads, so
that hundreds of namespaces are one answer. Isn't: a decision.
Invariants: as there: a topic that no broker has loaded is named in `missing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import msgspec

from heliograph.runtime.throttle import RowPace
from region_node.dr.operations import namespace_facts

NOT_IN, LACKING = "not_in", "lacking"
"""What may be asked of a region: {namespace: the other region} each."""
_LOOKS = {NOT_IN: namespace_facts.not_in, LACKING: namespace_facts.lacking}
_HIGHEST = frozenset({"age_s", "age_s_max", "silent_s", "unheard_s"})
"""Of several brokers' numbers of one namespace the highest counts; others are added up."""


class _Published(TypedDict):
    """What is read of `namespace_facts.not_in`."""

    missing: list[str]
    down: list[str]
    uncounted: list[str]
    messages: int
    bytes: int
    age_s: float


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


def of_broker(asked: Mapping[str, Mapping[str, str]], topics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One broker's. topics: namespace -> topic's name -> `namespace_facts.lag_facts`, of what it has loaded."""
    found: dict[str, Any] = {
        what: {
            namespace: _LOOKS[what]({"topics": topics.get(namespace, {}), "missing": []}, other)
            for namespace, other in asked.get(what, {}).items()
        }
        for what in _LOOKS
    }
    return {**found, "topics": {namespace: sorted(names) for namespace, names in topics.items()}}


def merged(parts: Sequence[Mapping[str, Any]], names: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """One region's, from its brokers' own. names: every topic that it has, of each namespace that it knows; of others
    nothing is said.
    """
    out: dict[str, Any] = {what: {} for what in _LOOKS}
    out["topics"] = {}
    for namespace, there in names.items():
        loaded = {name for part in parts for name in part["topics"].get(namespace, ())}
        missing = sorted(set(there) - loaded)
        out["topics"][namespace] = len(loaded) + len(missing)
        for what in _LOOKS:
            if lags := [part[what][namespace] for part in parts if namespace in part[what]]:
                out[what][namespace] = {**_joined(lags), "missing": missing}
    return out


def _joined(lags: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = dict(lags[0])
    for more in lags[1:]:
        found = {key: max(old, more[key]) if key in _HIGHEST else old + more[key] for key, old in found.items()}
    return found
