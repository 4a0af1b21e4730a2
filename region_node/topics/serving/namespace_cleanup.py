"""NamespaceCleanup: the schemas of a namespace go with it, and what this broker has counted of it, in whichever region
it is deleted.

Is: the schemas of topics that are not there, and the appends, of a namespace that is no longer in the configuration.
Isn't: the deletion of topics, or of what a topic had.
Invariants: nothing goes while a topic of the namespace is stored in this region, or the namespace is there again; one
that a restored configuration does not know was made after the backup, and is not gone; every broker may do it, and
doing it twice is no error. What is deleted while no broker of the region runs keeps its schemas: whether it is gone, or
the configuration was restored, nobody there has heard.
"""

from __future__ import annotations

import logging

from global_config.keys import NAMESPACES
from heliograph.model.errors import HeliographError
from region_node.topics.serving.topic_service import TopicService
from storage.managed_ledger.append_counts import Appends

log = logging.getLogger("region_node.topics")


class NamespaceCleanup:
    """Made once the configuration is known; it hears what is deleted from then on."""

    def __init__(self, topics: TopicService, appends: Appends) -> None:
        self._topics, self._appends = topics, appends
        self.close = topics.view.on_change(self._changed)

    def _changed(self, key: str) -> None:
        if not key.startswith(NAMESPACES):
            return
        namespace, view = key.removeprefix(NAMESPACES), self._topics.view
        if view.namespace(namespace) is None:
            self._topics.tasks.spawn(self._clean(namespace, view.restored))

    async def _clean(self, namespace: str, restored: bytes) -> None:
        """restored: as the configuration said when the namespace was lost sight of; by now all is heard that came with
        that.
        """
        topics, view = self._topics, self._topics.view

        def gone() -> bool:
            return view.namespace(namespace) is None and view.restored == restored

        if gone():
            self._appends.forget(namespace)
        try:
            if gone() and not await topics.count(namespace):
                await topics.schemas.delete_namespace(namespace, gone)
        except HeliographError as error:  # what is left counts for a namespace of the same name alone
            log.warning("schemas.not_cleaned", extra={"namespace": namespace, "error": str(error)})
