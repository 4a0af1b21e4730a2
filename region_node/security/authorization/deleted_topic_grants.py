"""Grants that end with their topic, whoever deleted it: an admin, or its inactivity.

Is: taking a deleted topic's grants out of its namespace's policies. Isn't: what a grant opens
(`authorization_service`), or giving one (`region_node.faces.admin.tenancy.permissions`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from global_config.admin import ConfigAdmin
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.topic_names import TopicName


class View(Protocol):
    def namespace(self, namespace: str) -> NamespacePolicies | None: ...


def without_topic(policies: NamespacePolicies, name: TopicName) -> NamespacePolicies:
    text = str(name)
    return replace(
        policies,
        topic_permissions={topic: roles for topic, roles in policies.topic_permissions.items() if topic != text},
    )


async def forget(config: ConfigAdmin, view: View, name: TopicName) -> bool:
    """A topic that was deleted leaves no grants: who makes one of that name later decides anew. Of a partition: its
    partitioned topic's stay.

    Returns whether there were any. Raises what a write of the configuration raises.
    """
    policies = view.namespace(name.namespace)
    if policies is None or str(name) not in policies.topic_permissions:
        return False
    await config.update_namespace(name.namespace, lambda p: without_topic(p, name))
    return True
