"""Authorization: what a role may do with a topic, a namespace, a tenant.

Is: super users, admins of a tenant, grants at namespaces and topics, Kafka's ACLs, subscriptions that only some roles
may use; answered from the watch-fed copy of the global configuration, so a check is a few look-ups and never waits.
Isn't: identity (`region_node.security.authentication`), or where a check is made (each face does).
Invariants: what no rule allows is refused; an ACL that refuses wins over every grant and every other ACL, in all
protocols, and not over a tenant's admins; a proxy gets only what it and the role it speaks for are both allowed; a
check is made when something is opened, and again for what is open when the rules change, never for a message.
Grants, in the namespace's value: role -> actions; topic -> role -> actions (a partitioned topic's hold for its
partitions); subscription -> roles.
Source: docs/security.md, "Rights".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import StrEnum
from typing import Protocol

from heliograph.model.configuration.acl_records import AclOperation, AclRecord, Resource
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.model.errors import Unauthorized
from heliograph.model.topic_names import TopicName
from region_node.security.authentication.principal import Principal
from region_node.security.authorization.acl_decisions import AclAnswer, AclDecisions
from region_node.security.authorization.roles_anywhere import RolesAnywhere
from region_node.security.settings import SecuritySettings


class Action(StrEnum):
    """What can be granted. Only the first two open anything here; the others are kept for tools that write them."""

    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"


OPERATIONS = {Action.PRODUCE: AclOperation.WRITE, Action.CONSUME: AclOperation.READ}
"""What an ACL calls what is granted."""


class RightsView(Protocol):
    """`global_config.view.ConfigView`, as rights are read from it."""

    def namespace(self, name: str) -> NamespacePolicies | None: ...

    def tenant(self, name: str) -> TenantInfo | None: ...

    def tenants(self) -> list[str]: ...

    def namespaces(self, tenant: str) -> list[str]: ...

    def acls(self, tenant: str) -> tuple[AclRecord, ...] | None: ...

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]: ...


class Authorization:
    """`enabled` False: everybody may do everything."""

    def __init__(self, settings: SecuritySettings, view: RightsView | None) -> None:
        self.enabled = settings.authorization and view is not None
        self._supers = frozenset(settings.super_users)
        self._view = view
        self.changes = 0
        """How often the rules may have changed: an answer holds as long as this is the same."""
        self._acls = None if view is None else AclDecisions(view)
        self._anywhere = None if view is None or self._acls is None else RolesAnywhere(view, self._acls)
        if self.enabled and view is not None:
            view.on_change(self._changed)

    def _changed(self, key: str) -> None:
        self.changes += 1
        if self._acls is not None:
            self._acls.changed(key)
        if self._anywhere is not None:
            self._anywhere.changed(key)

    def acls(self, tenant: str) -> tuple[AclRecord, ...] | None:
        """None: they cannot be read, so that they refuse everything but to admins."""
        return () if self._view is None else self._view.acls(tenant)

    def acls_are_about(self, tenant: str, resource: Resource) -> bool:
        return self.enabled and self._acls is not None and self._acls.are_about(tenant, resource)

    def acls_name_hosts(self, tenant: str) -> bool:
        """Whether what is answered of that tenant may be another thing from another host."""
        return self.enabled and self._acls is not None and self._acls.name_hosts(tenant)

    # -- questions ----------------------------------------------------------------------------------------------------

    def is_super(self, principal: Principal) -> bool:
        return not self.enabled or principal.internal or all(role in self._supers for role in principal.roles)

    def is_super_name(self, role: str) -> bool:
        """Whether a role of that name may do everything here by this broker's settings."""
        return role in self._supers

    def administers(self, principal: Principal, tenant: str) -> bool:
        return (
            not self.enabled
            or principal.internal
            or all(self._role_administers(role, tenant) for role in principal.roles)
        )

    def may(self, principal: Principal, action: Action, topic: TopicName) -> bool:
        """Everything but a consumer's subscription (`may_subscribe`)."""
        return (
            not self.enabled
            or principal.internal
            or all(self._role_may(role, principal.host, action, topic) for role in principal.roles)
        )

    def may_do(self, principal: Principal, operation: AclOperation, topic: TopicName) -> bool:
        """What nobody grants: for a tenant's admins, and for whom an ACL lets do it."""
        return (
            self.administers(principal, topic.tenant)
            or self.says_of_topic(principal, operation, topic) is AclAnswer.ALLOWED
        )

    def says_of_topic(self, principal: Principal, operation: AclOperation, topic: TopicName) -> AclAnswer:
        """What ACLs say of a topic; nothing to its tenant's admins, also where they speak for another role."""
        if self._acls is None:
            return AclAnswer.SILENT
        acls, host, roles = self._acls, principal.host, self._not_admins(principal, topic.tenant)
        return _of_all(acls.of_topic(role, host, operation, topic) for role in roles)

    def says(
        self, principal: Principal, operation: AclOperation, tenant: str, resource: Resource, name: str
    ) -> AclAnswer:
        """What ACLs say of a group, or of a transactional id, as `says_of_topic`."""
        if self._acls is None:
            return AclAnswer.SILENT
        acls, host, roles = self._acls, principal.host, self._not_admins(principal, tenant)
        return _of_all(acls.of_name(role, host, operation, tenant, resource, name) for role in roles)

    def may_subscribe(self, principal: Principal, topic: TopicName, subscription: str) -> bool:
        if not self.enabled or principal.internal:
            return True
        return all(
            self._role_may(role, principal.host, Action.CONSUME, topic)
            and self._role_may_use(role, topic, subscription)
            for role in principal.roles
        )

    def may_look_up(self, principal: Principal, topic: TopicName) -> bool:
        said = self.says_of_topic(principal, AclOperation.DESCRIBE, topic)
        return said is not AclAnswer.REFUSED and (said is AclAnswer.ALLOWED or self.may_open(principal, topic))

    def may_make(self, principal: Principal, topic: TopicName) -> bool:
        """Whether a topic that is not there is made because it asks for it: to see one is not enough."""
        said = self.says_of_topic(principal, AclOperation.CREATE, topic)
        return said is AclAnswer.ALLOWED or (said is AclAnswer.SILENT and self.may_open(principal, topic))

    def may_open(self, principal: Principal, topic: TopicName) -> bool:
        """Whether it may produce, or consume."""
        return self.may(principal, Action.PRODUCE, topic) or self.may(principal, Action.CONSUME, topic)

    def may_list(self, principal: Principal, namespace: str) -> bool:
        """The topics of a namespace: for whoever may produce or consume in all of it."""
        if not self.enabled or principal.internal:
            return True
        return all(self._role_may_list(role, principal.host, namespace) for role in principal.roles)

    def has_a_grant(self, principal: Principal, *actions: Action, at: str | None = None) -> bool:
        """Whether it may do one of these (none said: produce, or consume) with anything at all, in whatever tenant, or
        administers one. at: an ACL for every role counts only where it is of that tenant ("": nowhere), as no tenant's
        admin opens to everybody what is of another; None: each counts.
        """
        if not self.enabled or principal.internal:
            return True
        wanted = actions or (Action.PRODUCE, Action.CONSUME)
        assert self._anywhere is not None
        rows = [self._anywhere.of(OPERATIONS[each]) for each in wanted]
        if any(row.open_in if at is None else at in row.open_in for row in rows):
            return True
        return all(role in self._supers or any(role in row.roles for row in rows) for role in principal.roles)

    def tenants_of(self, roles: Iterable[str], at: str) -> set[str]:
        """The tenants in which rules let these roles, by their names, produce, consume, or administer: whose admins
        may speak for what is theirs. Of roles that no rule names: `at`, where that tenant opens something to everybody.
        """
        if not self.enabled:
            return set()
        assert self._anywhere is not None
        rows = [self._anywhere.of(operation) for operation in OPERATIONS.values()]
        found = {tenant for role in roles for row in rows for tenant in row.roles.get(role, ())}
        return found or {at for row in rows if at in row.open_in}

    def administers_all(self, principal: Principal, tenants: Collection[str]) -> bool:
        """Whether it administers each of them; none: whether it is a super user."""
        return all(self.administers(principal, tenant) for tenant in tenants) if tenants else self.is_super(principal)

    # -- the same, as an error ----------------------------------------------------------------------------------------

    def check(self, principal: Principal, action: Action, topic: TopicName) -> None:
        """Raises Unauthorized where `may` says no."""
        if not self.may(principal, action, topic):
            raise refusal(principal, action, str(topic))

    def check_subscribe(self, principal: Principal, topic: TopicName, subscription: str) -> None:
        """Raises Unauthorized where `may_subscribe` says no."""
        if not self.may_subscribe(principal, topic, subscription):
            raise refusal(principal, Action.CONSUME, f"{topic} by the subscription {subscription!r}")

    def check_look_up(self, principal: Principal, topic: TopicName) -> None:
        """Raises Unauthorized where `may_look_up` says no."""
        if not self.may_look_up(principal, topic):
            raise refusal(principal, "produce to or consume", str(topic))

    def check_transactions(self, principal: Principal) -> None:
        """Who has any grant may begin transactions, and find their coordinators; an ACL for every role is none. Raises
        Unauthorized.
        """
        if not self.has_a_grant(principal, at=""):
            raise Unauthorized(
                f"the role {principal.role!r} may not begin transactions, as it has no grant anywhere: an admin of a "
                "tenant can grant it produce or consume, by its name"
            )

    def check_list(self, principal: Principal, namespace: str) -> None:
        """Raises Unauthorized where `may_list` says no."""
        if not self.may_list(principal, namespace):
            raise refusal(principal, "list the topics of", namespace)

    # -- roles -----------------------------------------------------------------------------------------------------

    def _role_administers(self, role: str, tenant: str) -> bool:
        if role in self._supers:
            return True
        assert self._view is not None
        info = self._view.tenant(tenant)
        return info is not None and role in info.admin_roles

    def _not_admins(self, principal: Principal, tenant: str) -> Iterator[str]:
        """Those of its roles to whom ACLs of the tenant say anything."""
        if self.enabled and not principal.internal:
            yield from (role for role in principal.roles if not self._role_administers(role, tenant))

    def _role_may(self, role: str, host: str, action: Action, topic: TopicName) -> bool:
        if self._role_administers(role, topic.tenant):
            return True
        assert self._view is not None and self._acls is not None
        if (operation := OPERATIONS.get(action)) is not None:
            said = self._acls.of_topic(role, host, operation, topic)
            if said is not AclAnswer.SILENT:
                return said is AclAnswer.ALLOWED
        policies = self._view.namespace(topic.namespace)
        if policies is None:
            return False
        if action in policies.permissions.get(role, ()):
            return True
        if not policies.topic_permissions:
            return False
        return any(
            action in policies.topic_permissions.get(name, {}).get(role, ())
            for name in {str(topic), str(topic.partitioned)}
        )

    def _role_may_use(self, role: str, topic: TopicName, subscription: str) -> bool:
        if self._role_administers(role, topic.tenant):
            return True
        assert self._view is not None
        policies = self._view.namespace(topic.namespace)
        if policies is None:
            return False
        if policies.policies.get("subscriptionAuthMode") == "Prefix" and not subscription.startswith(role):
            return False
        allowed = policies.subscription_permissions.get(subscription)
        return not allowed or role in allowed

    def _role_may_list(self, role: str, host: str, namespace: str) -> bool:
        if self._role_administers(role, namespace.partition("/")[0]):
            return True
        assert self._view is not None and self._acls is not None
        said = self._acls.of_namespace(role, host, AclOperation.DESCRIBE, namespace)
        if said is not AclAnswer.SILENT:
            return said is AclAnswer.ALLOWED
        policies = self._view.namespace(namespace)
        granted = policies.permissions.get(role, ()) if policies is not None else ()
        return Action.PRODUCE in granted or Action.CONSUME in granted


def _of_all(said: Iterable[AclAnswer]) -> AclAnswer:
    """To several roles that must be allowed the same."""
    answers = set(said)
    if AclAnswer.REFUSED in answers:
        return AclAnswer.REFUSED
    return AclAnswer.ALLOWED if answers == {AclAnswer.ALLOWED} else AclAnswer.SILENT


def refusal(principal: Principal, action: str, what: str) -> Unauthorized:
    who = (
        f"the role {principal.role!r}"
        if not principal.proxy
        else f"the role {principal.role!r} through the proxy {principal.proxy!r}"
    )
    return Unauthorized(f"{who} may not {action} {what}: an admin of the tenant can grant it")
