"""Topic list watchers of one connection: the list of a namespace's topics, and its changes.

Is: from a watch to its updates. Isn't: a command (`topic_list_commands`), or the lists
(`region_node.topics.serving.topic_listing`).
Source: docs/protocols/pulsar.md, "Topic lists".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from heliograph.model.errors import NotAllowed, NotFound
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.session.client_identity import Identity
from region_node.faces.pulsar.session.pulsar_broker import ClientPort, PulsarBroker
from region_node.topics.serving.named_topics import joined
from region_node.topics.serving.topic_listing import WatchedList, topic_pattern

WATCHERS_MAX = 100
"""Of one connection; a client that is refused asks for the list from time to time."""


class TopicWatchers:
    """Holds one connection's topic list watchers, at most WATCHERS_MAX."""

    __slots__ = ("_broker", "_identity", "_port", "_stops", "listing", "namespaces")

    def __init__(self, port: ClientPort, broker: PulsarBroker, identity: Identity) -> None:
        self._port, self._broker, self._identity = port, broker, identity
        self._stops: dict[int, Callable[[], None]] = {}
        self.namespaces: dict[int, str] = {}
        """Watcher id -> what it watches."""
        self.listing = asyncio.Lock()
        """One list at a time is made for a connection: lists are long."""

    def open(self, command: pb.CommandWatchTopicList) -> Coroutine[Any, Any, None]:
        """The watcher is there at once, so that a close right behind it cancels it; what is returned answers the
        client.
        """
        watcher_id, known = command.watcher_id, command.watcher_id in self._stops

        def opening() -> None:
            """Stops a watcher that does not have its list yet: the list is then dropped."""

        if not known:
            self._stops[watcher_id], self.namespaces[watcher_id] = opening, command.namespace
        return self._open(command, opening, known)

    async def _open(self, command: pb.CommandWatchTopicList, opening: Callable[[], None], known: bool) -> None:
        if known:
            raise NotAllowed(f"watcher {command.watcher_id} is open already")
        stop: Callable[[], None] | None = None
        try:
            async with self.listing:
                await self._port.room()
                stop = await self._list(command, opening)
        finally:
            if stop is None and self._stops.get(command.watcher_id) is opening:
                self.shut(command.watcher_id)

    async def _list(self, command: pb.CommandWatchTopicList, opening: Callable[[], None]) -> Callable[[], None] | None:
        port, watcher_id = self._port, command.watcher_id
        if len(self._stops) > WATCHERS_MAX:
            raise NotAllowed(f"more than {WATCHERS_MAX} topic list watchers on one connection")
        topics = self._broker.topics
        self._identity.check_list(command.namespace)
        if topics.view.namespace(command.namespace) is None:
            raise NotFound(f"namespace {command.namespace} does not exist")
        topic_pattern(command.topics_pattern)
        current: WatchedList | None = None
        early: list[tuple[list[str], list[str]]] = []

        def changed(came: list[str], gone: list[str]) -> None:
            nonlocal current
            if current is None:  # the list itself is being matched
                early.append((came, gone))
                return
            new, old, current = current.after(came, gone)
            if not new and not old:
                return
            update = pb.CommandWatchTopicUpdate(
                watcher_id=watcher_id, new_topics=new, deleted_topics=old, topics_hash=current.hash
            )
            port.send(pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_UPDATE, watchTopicUpdate=update))

        unused = await topics.listed(command.namespace)
        found, stop = await topics.lists.watch(command.namespace, changed)
        if self._stops.get(watcher_id) is not opening or port.closed:  # closed meanwhile
            stop()
            return None
        self._stops[watcher_id] = stop
        matched = await topics.lists.matched(command.namespace, command.topics_pattern, joined(unused, found))
        if self._stops.get(watcher_id) is not stop or port.closed:
            return None
        for came, gone in early:
            matched = matched.after(came, gone)[2]
        current = matched
        success = pb.CommandWatchTopicListSuccess(
            request_id=command.request_id, watcher_id=watcher_id, topics_hash=matched.hash
        )
        if command.topics_hash != matched.hash:
            success.topic.extend(matched.names)
        port.send(pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST_SUCCESS, watchTopicListSuccess=success))
        return stop

    def shut(self, watcher_id: int) -> None:
        self.namespaces.pop(watcher_id, None)
        if (stop := self._stops.pop(watcher_id, None)) is not None:
            stop()

    def close(self) -> None:
        for watcher_id in list(self._stops):
            self.shut(watcher_id)
