"""AclIndex: all ACLs of one tenant, so that what they say of a name is a few look-ups, however many there are.

Is: what is said to each role, from each host, of names, of beginnings of names, and of namespaces, as bits. Isn't: the
record (`heliograph.model.configuration.acl_records`), or which tenant is asked (`acl_decisions`).
Bounds: making one sorts the records; a question costs at most four times (its role and every role, its host and every
host) a look-up for each name, one for the namespace, and a bisection among the beginnings.
Source: docs/protocols/kafka.md, "ACLs".
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator

from heliograph.model.configuration.acl_records import (
    ALLOWED_BY,
    ANYBODY,
    ANYWHERE,
    REFUSED_BY,
    AclOperation,
    AclRecord,
    Pattern,
    Resource,
)

_BITS = {operation: 1 << n for n, operation in enumerate(AclOperation)}
_REFUSED = len(_BITS)
"""By how much the bits of what is refused are above those of what is allowed."""
_SAID = {
    (operation, allow): sum(bit for asked, bit in _BITS.items() if operation in by[asked]) << (0 if allow else _REFUSED)
    for allow, by in ((True, ALLOWED_BY), (False, REFUSED_BY))
    for operation in AclOperation
}
"""(operation, allow) of a record -> which questions it answers, and how."""


class AclIndex:
    """`records`: of which it was made; who has others makes another index."""

    __slots__ = ("_hosts", "_said", "records")

    def __init__(self, records: tuple[AclRecord, ...]) -> None:
        self.records = records
        groups: defaultdict[str, defaultdict[tuple[str, str], list[AclRecord]]]
        groups = defaultdict(lambda: defaultdict(list))
        for record in records:
            groups[record.resource][record.role, record.host].append(record)
        self._said = {
            resource: {who: _Said(group) for who, group in by_who.items()} for resource, by_who in groups.items()
        }
        self._hosts = frozenset(record.host for record in records) - {ANYWHERE}

    @property
    def names_hosts(self) -> bool:
        """Whether it matters to any answer where somebody asks from."""
        return bool(self._hosts)

    def is_about(self, resource: Resource) -> bool:
        return resource in self._said

    def roles(self, resource: Resource, operation: AclOperation) -> Iterator[str]:
        """Those to whom anything of that kind is allowed; some may come twice."""
        bit = _BITS[operation]
        yield from (role for (role, _), said in self._said.get(resource, {}).items() if said.anything & bit)

    def said(self, resource: Resource, role: str, host: str, names: Iterable[str], namespace: str = "") -> int:
        """What is said of something that has these names; namespace: of a topic. For `allows` and `refuses`."""
        by_who, found = self._said.get(resource), 0
        if by_who is None:
            return 0
        hosts = (host, ANYWHERE) if host in self._hosts else (ANYWHERE,)
        for each in (role, ANYBODY):
            for where in hosts:
                if (said := by_who.get((each, where))) is not None:
                    found |= said.of(names, namespace)
        return found


def allows(said: int, operation: AclOperation) -> bool:
    return bool(said & _BITS[operation])


def refuses(said: int, operation: AclOperation) -> bool:
    return bool(said & _BITS[operation] << _REFUSED)


class _Said:
    """To one role, from one host, of one kind of thing."""

    __slots__ = ("_bits", "_names", "_namespaces", "_starts", "anything")

    def __init__(self, records: list[AclRecord]) -> None:
        self.anything = 0
        self._names: dict[str, int] = {}
        self._namespaces: dict[str, int] = {}
        beginnings: dict[str, int] = {}
        tables = {Pattern.LITERAL: self._names, Pattern.PREFIXED: beginnings, Pattern.ALL: self._namespaces}
        for record in records:
            table, bits = tables[Pattern(record.pattern)], _SAID[AclOperation(record.operation), record.allow]
            table[record.name] = table.get(record.name, 0) | bits
            self.anything |= bits
        self._starts, self._bits = _intervals(beginnings)

    def of(self, names: Iterable[str], namespace: str) -> int:
        found = self._namespaces.get(namespace, 0)
        for name in names:
            found |= self._names.get(name, 0) | self._bits[bisect_right(self._starts, name)]
        return found


def _intervals(beginnings: dict[str, int]) -> tuple[list[str], list[int]]:
    """Where, among all names in their order, the bits change, and what they are in front of each such place, and behind
    the last: names that begin alike lie side by side, within those that begin with less of it.
    """
    starts: list[str] = []
    bits = [0]
    around: list[tuple[str, int]] = []  # beginnings of beginnings, and all that is said within

    def end() -> None:
        gone, _ = around.pop()
        if (behind := _behind(gone)) is not None:
            starts.append(behind)
            bits.append(around[-1][1] if around else 0)

    for name in sorted(beginnings):
        while around and not name.startswith(around[-1][0]):
            end()
        within = beginnings[name] | (around[-1][1] if around else 0)
        around.append((name, within))
        starts.append(name)
        bits.append(within)
    while around:
        end()
    return starts, bits


def _behind(beginning: str) -> str | None:
    """The first name behind all that begin so; None: there is none."""
    while beginning:
        if (last := ord(beginning[-1])) < sys.maxunicode:
            return beginning[:-1] + chr(last + 1)
        beginning = beginning[:-1]
    return None
