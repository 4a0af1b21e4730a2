"""Isolation: which of the live brokers may serve the bundles of a namespace.

Is: the decision, from the region's isolation policies and the names of its brokers. Isn't: where the policies lie
(`isolation_rules`), or which of the permitted brokers it shall be (`region_node.placement.balance.bundle_placement`).
Invariants:
- some live broker may always serve a namespace, as long as any lives: a policy whose brokers are all gone leaves the
  choice to all;
- two brokers with the same policies and the same live brokers find the same answer: the policies count in the order of
  their names;
- a primary broker of any policy serves no namespace without a policy, as long as another broker lives that is nobody's
  primary one.
Source: Pulsar's namespace isolation policies (`NamespaceIsolationData`); docs/protocols/balancing.md, "Isolation".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from heliograph.model.errors import CorruptData, NotAllowed

FORMAT = 1
REGEXES_MAX = 100
REGEX_CHARS_MAX = 500
POLICIES_MAX = 1000
_REMEMBERED_MAX = 50_000

Live = Mapping[str, Sequence[str]]
"""Live broker -> the names that a regex may call it by: its id, and host and port and host alone of its admin
interface.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationPolicy:
    """Namespaces and brokers by regexes, each of which must fit the whole name.

    min_available: with fewer live primary brokers than this the secondary ones serve too.
    usage_threshold: kept and shown (per cent), since Pulsar's tools send it; what counts is how many live.
    """

    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    min_available: int = 1
    usage_threshold: int = 100

    def __post_init__(self) -> None:
        for what, regexes in (
            ("namespaces", self.namespaces),
            ("primary", self.primary),
            ("secondary", self.secondary),
        ):
            if len(regexes) > REGEXES_MAX:
                raise NotAllowed(f"{what}: at most {REGEXES_MAX} regexes, not {len(regexes)}")
            for regex in regexes:
                _check_regex(what, regex)
        if not self.namespaces or not self.primary:
            raise NotAllowed(f"{'primary' if self.namespaces else 'namespaces'}: at least one regex is needed")
        if not 0 <= self.min_available <= 10_000:
            raise NotAllowed(f"min_limit must be 0 to 10000, not {self.min_available}")
        if not 0 <= self.usage_threshold <= 100:
            raise NotAllowed(f"usage_threshold must be 0 to 100 per cent, not {self.usage_threshold}")

    def covers(self, namespace: str) -> bool:
        return _fits(self.namespaces, (namespace,))

    def is_primary(self, names: Sequence[str]) -> bool:
        """Whether a primary regex fits one of `names`: all that a regex may call one broker."""
        return _fits(self.primary, names)

    def is_secondary(self, names: Sequence[str]) -> bool:
        return not self.is_primary(names) and _fits(self.secondary, names)

    def encode(self) -> bytes:
        fields = {"namespaces": self.namespaces, "primary": self.primary, "secondary": self.secondary}
        packed: bytes = msgpack.packb(
            {"format": FORMAT, **fields, "min": self.min_available, "usage": self.usage_threshold}
        )
        return packed

    @classmethod
    def decode(cls, blob: bytes) -> IsolationPolicy:
        """Reads what `encode` wrote. Raises CorruptData, also of a format that this version does not know."""
        try:
            fields: dict[str, Any] = msgpack.unpackb(blob)
            if fields["format"] != FORMAT:
                raise CorruptData(f"isolation policy: of format {fields['format']}, which this version does not know")
            namespaces, primary, secondary = (
                tuple(map(str, fields[what])) for what in ("namespaces", "primary", "secondary")
            )
            return cls(
                namespaces=namespaces,
                primary=primary,
                secondary=secondary,
                min_available=fields["min"],
                usage_threshold=fields["usage"],
            )
        except (ValueError, TypeError, KeyError, NotAllowed, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"isolation policy: {error!r}") from error


class Isolation:
    """The policies of a region."""

    def __init__(self) -> None:
        self.policies: dict[str, IsolationPolicy] = {}
        self._found: dict[str, str] = {}
        """Namespace -> the name of its policy; "": none."""

    def put(self, name: str, policy: IsolationPolicy | None) -> None:
        """Sets, or with None removes, the policy `name`, and forgets which policy covers which namespace."""
        if policy is None:
            self.policies.pop(name, None)
        else:
            self.policies[name] = policy
        self.policies = dict(sorted(self.policies.items()))
        self._found.clear()

    def policy_of(self, namespace: str) -> str:
        """The name of the first policy that covers it; "": none does."""
        found = self._found.get(namespace)
        if found is None:
            if len(self._found) >= _REMEMBERED_MAX:
                self._found.clear()
            found = self._found[namespace] = next(
                (name for name, policy in self.policies.items() if policy.covers(namespace)), ""
            )
        return found

    def permitted(self, namespace: str, live: Live) -> list[str]:
        """Those of the live brokers that may serve it, in order; empty only where none lives."""
        return self.brokers_of(self.policy_of(namespace), live)

    def brokers_of(self, name: str, live: Live) -> list[str]:
        """The same for the namespaces of one policy; "": of none."""
        if not self.policies:
            return sorted(live)
        if not name:
            chosen = [
                broker
                for broker, names in live.items()
                if not any(policy.is_primary(names) for policy in self.policies.values())
            ]
        else:
            policy = self.policies[name]
            chosen = [broker for broker, names in live.items() if policy.is_primary(names)]
            if len(chosen) < policy.min_available or not chosen:
                chosen += [broker for broker, names in live.items() if policy.is_secondary(names)]
        return sorted(chosen or live)


def together(brokers: Iterable[str], permitted: Iterable[Sequence[str]]) -> list[list[str]]:
    """The brokers in the groups between which no bundle may move, each in order: those of one set of permitted brokers
    are in one group.
    """
    root = {broker: broker for broker in brokers}

    def find(broker: str) -> str:
        while root[broker] != broker:
            root[broker] = root[root[broker]]
            broker = root[broker]
        return broker

    for allowed in permitted:
        known = [broker for broker in allowed if broker in root]
        for broker in known[1:]:
            one, other = sorted((find(known[0]), find(broker)))
            root[other] = one
    groups: dict[str, list[str]] = {}
    for broker in sorted(root):
        groups.setdefault(find(broker), []).append(broker)
    return list(groups.values())


def _check_regex(what: str, regex: str) -> None:
    if not regex or len(regex) > REGEX_CHARS_MAX:
        raise NotAllowed(f"{what}: a regex has 1 to {REGEX_CHARS_MAX} characters")
    try:
        re.compile(regex)
    except (re.error, RecursionError, OverflowError) as error:
        raise NotAllowed(f"{what}: {regex!r} is no regex: {error}") from error


def _fits(regexes: Sequence[str], names: Sequence[str]) -> bool:
    return any(re.fullmatch(regex, name) for regex in regexes for name in names)
