"""Rules that ask for more or fewer nodes of a tier, and when one of them has come true.

Is: rules, and the decision over time. Isn't: reading the measures, or running what the operator gave
(`heliograph.cli.servers.autoscale`).
Invariants: a rule fires only after its condition has held for `for_s` without a break, and then rests for `rest_s`; of
the rules of one tier none fires while another one of that tier rests, so that what was added is not taken away before
it counts; a measure that is not known breaks every condition.
Source: docs/operating/scaling.md, "Scale by itself".
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.model.errors import ConfigError

TAKES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "min": min,
    "sum": sum,
    "count": len,
}
MEASURES = ("broker.load", "broker.bundles", "bookie.free_bytes", "bookie.writable")
METRIC = "metric:"
"""In front of the name of a metric of the brokers."""
_FIELDS = {"name", "tier", "measure", "take", "above", "below", "for_s", "rest_s", "run", "call"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRule:
    """measure: one of MEASURES, or METRIC and a name; `take` makes one number of its values. Exactly one of above and
    below, of run and call.
    """

    name: str
    tier: str
    measure: str
    take: str = "mean"
    above: float | None = None
    below: float | None = None
    for_s: float = 120.0
    rest_s: float = 600.0
    run: tuple[str, ...] = ()
    """A command and its arguments; it finds the rule, tier, and value in its environment."""
    call: str = ""
    """A URL that gets them by POST."""

    def holds(self, value: float) -> bool:
        return value > self.above if self.above is not None else self.below is not None and value < self.below


def rules_of(text: str) -> list[ScalingRule]:
    """From TOML: a table [[rule]] each. Raises ConfigError with the rule and what is wrong with it."""
    try:
        tables = tomllib.loads(text).get("rule", [])
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the rules are no TOML: {error}") from error
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ConfigError("the rules are tables that begin with [[rule]]; there is none")
    found = [_rule(number, table) for number, table in enumerate(tables, 1)]
    names = [rule.name for rule in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"two rules are named {twice[0]!r}")
    return found


def _rule(number: int, table: Mapping[str, Any]) -> ScalingRule:
    name = str(table.get("name", "")) or f"rule {number}"

    def wrong(what: str) -> ConfigError:
        return ConfigError(f"{name}: {what}")

    if unknown := sorted(table.keys() - _FIELDS):
        raise wrong(f"there is no field {unknown[0]!r}; there are {', '.join(sorted(_FIELDS))}")
    measure, take, tier = str(table.get("measure", "")), str(table.get("take", "mean")), str(table.get("tier", ""))
    if measure not in MEASURES and not (measure.startswith(METRIC) and len(measure) > len(METRIC)):
        raise wrong(
            f"measure must be one of {', '.join(MEASURES)}, or {METRIC}NAME of a metric of the brokers, not {measure!r}"
        )
    if take not in TAKES:
        raise wrong(f"take must be one of {', '.join(TAKES)}, not {take!r}")
    if not tier:
        raise wrong('it must name the tier that it grows or shrinks, as tier = "brokers"')
    numbers: dict[str, float] = {}
    for field in ("above", "below", "for_s", "rest_s"):
        if field in table:
            if (
                isinstance(table[field], bool)
                or not isinstance(table[field], int | float)
                or (field.endswith("_s") and table[field] < 0)
            ):
                raise wrong(
                    f"{field} must be a number{' of seconds, not below 0' if field.endswith('_s') else ''}, not "
                    f"{table[field]!r}"
                )
            numbers[field] = float(table[field])
    if ("above" in table) == ("below" in table):
        raise wrong("give either above or below")
    run, call = table.get("run", []), str(table.get("call", ""))
    if not isinstance(run, list) or not all(isinstance(word, str) for word in run):
        raise wrong('run must be a list of words, as ["/usr/local/bin/add-broker", "eu"]')
    if bool(run) == bool(call):
        raise wrong("give either run (a command) or call (a URL)")
    if call and not call.startswith(("http://", "https://")):
        raise wrong(f"call must be a URL with http:// or https://, not {call!r}")
    return ScalingRule(name=name, tier=tier, measure=measure, take=take, run=tuple(run), call=call, **numbers)


class Scaler:
    """Remembers since when each rule holds, and until when each tier rests. Times are monotonic seconds."""

    def __init__(self, rules: Sequence[ScalingRule]) -> None:
        self.rules = rules
        self._since: dict[str, float] = {}
        self._rests: dict[str, float] = {}

    def look(self, measures: Mapping[str, Sequence[float]], now: float) -> list[tuple[ScalingRule, float]]:
        """measures: name -> a value of each node that has one. Returns the rules that have come true, with the value
        that did it.
        """
        found: list[tuple[ScalingRule, float]] = []
        for rule in self.rules:
            values = measures.get(rule.measure, ())
            value = float(TAKES[rule.take](values)) if values else None
            if value is None or not rule.holds(value):
                self._since.pop(rule.name, None)
                continue
            since = self._since.setdefault(rule.name, now)
            if now - since >= rule.for_s and now >= self._rests.get(rule.tier, now):
                found.append((rule, value))
                self._rests[rule.tier] = now + rule.rest_s
                for other in self.rules:
                    if other.tier == rule.tier:
                        self._since.pop(other.name, None)
        return found
