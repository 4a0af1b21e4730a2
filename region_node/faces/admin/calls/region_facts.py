"""What a region knows of a namespace's topics, gathered from all of its brokers, here or in another region.

Is: who is asked, and putting the answers together. Isn't: what a fact is (`region_node.dr.operations.namespace_facts`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from heliograph.model.admin_paths import dr_path
from heliograph.model.errors import HeliographError, MetadataUnavailable
from heliograph.model.topic_names import TopicName
from region_node.dr.operations import namespace_facts
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.existing import of_other_brokers
from region_node.faces.admin.calls.other_regions import Caller, elsewhere
from region_node.topics.serving.deletion_everywhere import where_copies_may_be
from region_node.topics.serving.named_topics import under
from region_node.topics.topic import Topic


def loaded_topics(admin: Admin, namespace: str) -> list[Topic]:
    """Those topics of the namespace that this broker has loaded, and whose messages are stored."""
    loaded = admin.topics.loaded.values()
    return [t for t in loaded if t.name.namespace == namespace and not t.volatile and not t.closed]


def facts_of_broker(admin: Admin, namespace: str) -> dict[str, Any]:
    """What this broker alone knows of the namespace's topics: of those that it has loaded."""
    now_ms, found = admin.clock.wall_ms(), loaded_topics(admin, namespace)
    return {
        "topics": {topic.text: namespace_facts.topic_facts(topic, admin.links, now_ms) for topic in found},
        "unopened": namespace_facts.unopened_facts(admin.links.incoming, (namespace,), now_ms, admin.clock.monotonic()),
    }


async def facts_here(admin: Admin, namespace: str) -> dict[str, Any]:
    """Merges what all brokers of this region know of the namespace's topics. Raises what a call to one raises."""
    parts = [facts_of_broker(admin, namespace)]
    parts += await of_other_brokers(admin, "GET", f"{dr_path(namespace)}/facts?local=true")
    return namespace_facts.merged(admin.region, parts, await admin.topics.topics(namespace), namespace)


def facts_of(admin: Admin, request: Caller) -> Callable[[str, str], Awaitable[dict[str, Any]]]:
    """(region, namespace) -> its facts, asked in the name of whoever asks here."""

    async def ask(region: str, namespace: str) -> dict[str, Any]:
        if region == admin.region:
            return await facts_here(admin, namespace)
        found: dict[str, Any] = await elsewhere(admin, request, region, "GET", f"{dr_path(namespace)}/facts")
        return found

    return ask


async def topics_here(admin: Admin, namespace: str, parts_of: str = "") -> dict[str, Any]:
    """How many topics of the namespace are stored in this region, and how many of them were not deleted, which is all
    of its facts that is told: also where this broker has not heard of the namespace yet. parts_of: a topic whose
    partitions alone are counted.
    """
    stored = await admin.topics.stored(namespace)
    if parts_of:
        stored = [str(part) for part in under(TopicName.parse(parts_of), stored) if part.partition >= 0]
    counts = {"stored": len(stored), "undeleted": len(await admin.topics.undeleted(stored))}
    return {"region": admin.region, "topics": {}, "missing": [], **counts}


async def topics_elsewhere(
    admin: Admin, request: Caller, namespace: str, *, parts_of: str = ""
) -> dict[str, int | HeliographError]:
    """How many topics of the namespace each other region has that may have a copy, without those that were deleted, or
    why that is not known. parts_of: a topic whose partitions alone are counted; an earlier version counts all.
    """
    query = f"stored=true&parts_of={quote(parts_of, safe='')}" if parts_of else "stored=true"

    async def ask(region: str) -> int | HeliographError:
        try:
            found = await elsewhere(admin, request, region, "GET", f"{dr_path(namespace)}/facts?{query}")
            # an earlier version tells all that it knows of each topic, or counts what was deleted as well
            stored = found.get("stored", len(found["topics"]) + len(found["missing"]))
            return int(found.get("undeleted", stored))
        except HeliographError as error:
            return error
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            return MetadataUnavailable(f"region {region} does not say how many topics it has: {error!r:.200}")

    others = [region for region in where_copies_may_be(admin.view, namespace) if region != admin.region]
    return dict(zip(others, await asyncio.gather(*map(ask, others)), strict=True))
