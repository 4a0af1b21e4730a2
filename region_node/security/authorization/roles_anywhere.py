"""RolesAnywhere: which roles some rule lets produce, or consume, with anything at all.

Is: those of each tenant and namespace, counted together; only what has changed is read again, when somebody asks.
Isn't: a right (`authorization_service`).
Invariants: the answer is that of all tenants, namespaces, and ACLs of the copy as it is now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from global_config import keys
from heliograph.model.configuration.acl_records import ANYBODY, AclOperation, Resource
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from region_node.security.authorization.acl_decisions import AclDecisions

_GRANTED = {AclOperation.WRITE: "produce", AclOperation.READ: "consume"}
"""What a grant calls what an ACL allows."""
_PLACES = (keys.TENANTS, keys.NAMESPACES, keys.ACLS)


class GrantsView(Protocol):
    def namespace(self, name: str) -> NamespacePolicies | None: ...

    def tenant(self, name: str) -> TenantInfo | None: ...

    def tenants(self) -> list[str]: ...

    def namespaces(self, tenant: str) -> list[str]: ...


class Anywhere(NamedTuple):
    """Who may do one operation somewhere. roles: by tenant, in how many of its places (itself, and its namespaces) each
    may; open_in: the tenants in which an ACL lets every role do it.
    """

    roles: dict[str, Counter[str]]
    open_in: set[str]


class RolesAnywhere:
    """Whoever hears of a change of the copy calls `changed`."""

    def __init__(self, view: GrantsView, acls: AclDecisions) -> None:
        self._view, self._acls = view, acls
        self._found = {operation: Anywhere({}, set()) for operation in _GRANTED}
        self._counted: dict[str, dict[AclOperation, frozenset[str]]] = {}
        """Tenant, or namespace -> the roles that are counted of it."""
        self._tenants = set[str]()
        """Those that were there: of another one no namespace counts."""
        self._stale: dict[str, None] | None = None
        """Tenants and namespaces that have changed since; None: nothing was read yet."""

    def changed(self, key: str) -> None:
        if self._stale is None:
            return
        for prefix in _PLACES:
            if key.startswith(prefix):
                self._stale[key.removeprefix(prefix)] = None

    def of(self, operation: AclOperation) -> Anywhere:
        """Reads what has changed first. operation: WRITE or READ."""
        if self._stale is None:
            self._stale = dict.fromkeys(self._view.tenants())
        stale, self._stale = self._stale, {}
        for place in stale:
            self._count(place)
            if "/" not in place and (self._view.tenant(place) is None) is (place in self._tenants):
                self._tenants ^= {place}
                for namespace in self._view.namespaces(place):
                    self._count(namespace)
        return self._found[operation]

    def _count(self, place: str) -> None:
        before, now = self._counted.pop(place, {}), {each: frozenset(self._roles(place, each)) for each in _GRANTED}
        tenant = place.partition("/")[0]
        for operation, (roles, open_in) in self._found.items():
            for role in before.get(operation, ()):
                roles[role][tenant] -= 1
                if not roles[role][tenant]:
                    del roles[role][tenant]
                if not roles[role]:
                    del roles[role]
            for role in now[operation] - {ANYBODY}:
                roles.setdefault(role, Counter())[tenant] += 1
            (open_in.add if ANYBODY in now[operation] else open_in.discard)(place)
            now[operation] -= {ANYBODY}
        if any(now.values()):
            self._counted[place] = now

    def _roles(self, place: str, operation: AclOperation) -> Iterator[str]:
        """ANYBODY only where an ACL says so, hence never of a namespace."""
        if "/" not in place:
            if (info := self._view.tenant(place)) is None:
                return
            yield from (role for role in info.admin_roles if role != ANYBODY)
            reading = operation is AclOperation.READ  # by some group, too
            for resource in (Resource.TOPIC, Resource.GROUP) if reading else (Resource.TOPIC,):
                yield from self._acls.roles(place, resource, operation)
        elif self._view.tenant(place.partition("/")[0]) is not None and (policies := self._view.namespace(place)):
            for grants in (policies.permissions, *policies.topic_permissions.values()):
                yield from (
                    role for role, actions in grants.items() if _GRANTED[operation] in actions and role != ANYBODY
                )
