"""Lags of many namespaces at once: what a region published of each that another one lacks, or lacks itself.

Is: the numbers of `region_node.dr.operations.namespace_facts`, without what only the step of an operation reads, so
that hundreds of namespaces are one answer. Isn't: a decision.
Invariants: as there: a topic that no broker has loaded is named in `missing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from region_node.dr.operations import namespace_facts

NOT_IN, LACKING = "not_in", "lacking"
"""What may be asked of a region: {namespace: the other region} each."""
_LOOKS = {NOT_IN: namespace_facts.not_in, LACKING: namespace_facts.lacking}
_HIGHEST = frozenset({"age_s", "age_s_max", "silent_s", "unheard_s"})
"""Of several brokers' numbers of one namespace the highest counts; others are added up."""


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
