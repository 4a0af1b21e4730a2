"""Grants that end with their topic, whoever deleted it: an admin, a client of Kafka, its inactivity, or a tombstone.

Is: taking a deleted topic's grants out of its namespace's policies. Isn't: what a grant opens
(`authorization_service`), or giving one (`region_node.faces.admin.tenancy.permissions`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from global_config.admin import ConfigAdmin
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import NotFound
from heliograph.model.topic_names import TopicName


class View(Protocol):
    def namespace(self, namespace: str) -> NamespacePolicies | None: ...


def has_grants(policies: NamespacePolicies | None, name: TopicName) -> bool:
    """Whether the topic has any, or one of its partitions."""
    return policies is not None and any(_of(topic, name) for topic in policies.topic_permissions)


def without_topic(policies: NamespacePolicies, name: TopicName) -> NamespacePolicies:
    """The policies without the grants of the topic, and of its partitions."""
    return replace(
        policies,
        topic_permissions={topic: roles for topic, roles in policies.topic_permissions.items() if not _of(topic, name)},
    )


async def forget(config: ConfigAdmin, view: View, name: TopicName) -> bool:
    """A topic that is deleted leaves no grants: who makes one of that name later decides anew. Of a partition: its
    partitioned topic's stay. Called before the name is free, so that a deletion which fails here can be given again.

    Returns whether there were any. Raises what a write of the configuration raises.
    """
    if not has_grants(view.namespace(name.namespace), name):
        return False
    try:
        await config.update_namespace(name.namespace, lambda p: without_topic(p, name))
    except NotFound:
        return False  # its namespace went, and the grants with it
    return True


def _of(granted: str, name: TopicName) -> bool:
    _, partition, number = granted.partition(f"{name}-partition-")
    return granted == str(name) or (bool(partition) and number.isdigit())
