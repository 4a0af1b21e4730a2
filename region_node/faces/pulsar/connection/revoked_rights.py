"""Rights that go while something is open: its producers, consumers, and watchers are closed at once.

Is: from a change of the configuration to the connections that it concerns. Isn't: a rule
(`region_node.security.authorization.authorization_service`).
Invariants: a change that leaves grants, ACLs, and admins as they are costs one comparison; what is still being opened
is checked by its own command, behind its last wait, so that nothing slips between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from global_config import keys
from region_node.security.authorization.authorization_service import Action, RightsView

if TYPE_CHECKING:
    from region_node.faces.pulsar.connection.pulsar_listener import PulsarListener
    from region_node.faces.pulsar.session.pulsar_session import PulsarSession


class Revoking:
    """Lives as long as its listener; `close` ends it."""

    def __init__(self, listener: PulsarListener, view: RightsView) -> None:
        self._listener, self._view = listener, view
        self._seen: dict[str, object] = {}
        self.close = view.on_change(self._changed) if listener.broker.security.rights.enabled else _nothing

    def _changed(self, key: str) -> None:
        if key.startswith(keys.NAMESPACES):
            namespace = key.removeprefix(keys.NAMESPACES)
            policies = self._view.namespace(namespace)
            rules: object = policies and (
                policies.permissions,
                policies.topic_permissions,
                policies.subscription_permissions,
                policies.policies.get("subscriptionAuthMode"),
            )
            if self._is_new(key, rules):
                self._recheck(lambda name: name == namespace)
        elif key.startswith(keys.TENANTS):
            tenant = key.removeprefix(keys.TENANTS)
            info = self._view.tenant(tenant)
            if self._is_new(key, info and info.admin_roles):
                self._recheck(lambda name: name.startswith(f"{tenant}/"))
        elif key.startswith(keys.ACLS):
            tenant = key.removeprefix(keys.ACLS)
            if self._is_new(key, self._view.acls(tenant)):
                self._recheck(lambda name: name.startswith(f"{tenant}/"))

    def _is_new(self, key: str, rules: object) -> bool:
        known, before = key in self._seen, self._seen.get(key)
        self._seen[key] = rules
        return not known or before != rules

    def _recheck(self, covers: Callable[[str], bool]) -> None:
        for connection in list(self._listener.opened.all):
            if connection.connected:
                recheck(connection.session, covers)


def recheck(session: PulsarSession, covers: Callable[[str], bool]) -> None:
    """covers: whether a namespace is one whose rules changed."""
    rights, principal = session.broker.security.rights, session.identity.principal
    if principal is None or principal.internal:
        return
    for producer in list(session.producing.handles.values()):
        if producer.topic is None or producer.closed or not covers(producer.topic.name.namespace):
            continue
        if not rights.may(principal, Action.PRODUCE, producer.topic.name):
            session.producing.close_when_answered(producer)
    for consumer in list(session.consuming.handles.values()):
        if consumer.topic is None or consumer.subscription is None or not covers(consumer.topic.name.namespace):
            continue
        if not rights.may_subscribe(principal, consumer.topic.name, consumer.subscription.name):
            session.consuming.throw_out(consumer)
    if any(
        covers(namespace) and not rights.may_list(principal, namespace)
        for namespace in session.watchers.namespaces.values()
    ):
        session.close("this role may not list the topics of a namespace any more")  # a watcher has no other end


def _nothing() -> None:
    """Where everybody may do everything, nothing is revoked."""
