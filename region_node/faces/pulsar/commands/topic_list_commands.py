"""Topic lists over frames: GET_TOPICS_OF_NAMESPACE, WATCH_TOPIC_LIST and its updates, WATCH_TOPIC_LIST_CLOSE.

Is: the watchers of one connection. Isn't: the lists (`region_node.topics.serving.topic_listing`).
Source: docs/protocols/pulsar.md, "Topic lists".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from heliograph.model.errors import NotAllowed, NotFound
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.topics.serving.named_topics import joined
from region_node.topics.serving.topic_listing import matching, topic_pattern, topics_hash

if TYPE_CHECKING:
    from region_node.faces.pulsar.connection.pulsar_connection import PulsarConnection

WATCHERS_MAX = 100
"""Of one connection; a client that is refused asks for the list from time to time."""


class TopicWatchers:
    """Holds one connection's topic list watchers, at most WATCHERS_MAX."""

    def __init__(self, connection: PulsarConnection) -> None:
        self._connection = connection
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
                await self._connection.unsent.room()
                stop = await self._list(command, opening)
        finally:
            if stop is None and self._stops.get(command.watcher_id) is opening:
                self.shut(command.watcher_id)

    async def _list(self, command: pb.CommandWatchTopicList, opening: Callable[[], None]) -> Callable[[], None] | None:
        connection, watcher_id = self._connection, command.watcher_id
        if len(self._stops) > WATCHERS_MAX:
            raise NotAllowed(f"more than {WATCHERS_MAX} topic list watchers on one connection")
        topics = connection.listener.topics
        connection.identity.check_list(command.namespace)
        if topics.view.namespace(command.namespace) is None:
            raise NotFound(f"namespace {command.namespace} does not exist")
        matches = topic_pattern(command.topics_pattern)
        names: dict[str, None] = {}
        early: list[tuple[list[str], list[str]]] = []
        matched = False

        def change(came: list[str], gone: list[str]) -> tuple[list[str], list[str]]:
            came = [name for name in came if matches(name) and name not in names]
            gone = [name for name in gone if name in names]
            names.update(dict.fromkeys(came))
            for name in gone:
                del names[name]
            return came, gone

        def changed(came: list[str], gone: list[str]) -> None:
            if not matched:  # the list itself is being matched
                early.append((came, gone))
                return
            came, gone = change(came, gone)
            if not came and not gone:
                return
            update = pb.CommandWatchTopicUpdate(
                watcher_id=watcher_id, new_topics=came, deleted_topics=gone, topics_hash=topics_hash(names)
            )
            connection.send(pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_UPDATE, watchTopicUpdate=update))

        unused = await topics.listed(command.namespace)
        found, stop = await topics.lists.watch(command.namespace, changed)
        if self._stops.get(watcher_id) is not opening or connection.closed:  # closed meanwhile
            stop()
            return None
        self._stops[watcher_id] = stop
        names.update(dict.fromkeys(await matching(matches, joined(unused, found))))
        if self._stops.get(watcher_id) is not stop or connection.closed:
            return None
        for came, gone in early:
            change(came, gone)
        matched = True
        current = topics_hash(names)
        success = pb.CommandWatchTopicListSuccess(
            request_id=command.request_id, watcher_id=watcher_id, topics_hash=current
        )
        if command.topics_hash != current:
            success.topic.extend(names)
        connection.send(pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST_SUCCESS, watchTopicListSuccess=success))
        return stop

    def shut(self, watcher_id: int) -> None:
        self.namespaces.pop(watcher_id, None)
        if (stop := self._stops.pop(watcher_id, None)) is not None:
            stop()

    def close(self) -> None:
        for watcher_id in list(self._stops):
            self.shut(watcher_id)


def on_watch(connection: PulsarConnection, command: pb.BaseCommand) -> None:
    watch = command.watchTopicList
    if connection.takes(watch.request_id):
        connection.answer(watch, connection.watchers.open(watch))


def on_watch_close(connection: PulsarConnection, command: pb.BaseCommand) -> None:
    connection.watchers.shut(command.watchTopicListClose.watcher_id)
    connection.send_success(command.watchTopicListClose.request_id)


def on_topics(connection: PulsarConnection, command: pb.BaseCommand) -> None:
    ask = command.getTopicsOfNamespace
    connection.answer(ask, _topics(connection, ask))


async def _topics(connection: PulsarConnection, command: pb.CommandGetTopicsOfNamespace) -> None:
    async with connection.watchers.listing:
        await connection.unsent.room()
        if not connection.closed:
            await _list_topics(connection, command)


async def _list_topics(connection: PulsarConnection, command: pb.CommandGetTopicsOfNamespace) -> None:
    topics = connection.listener.topics
    connection.identity.check_list(command.namespace)
    names = await topics.listed(command.namespace) if topics.view.namespace(command.namespace) is not None else []
    if command.mode == pb.CommandGetTopicsOfNamespace.NON_PERSISTENT:
        names = []
    if command.mode != pb.CommandGetTopicsOfNamespace.PERSISTENT:
        names += topics.volatile_topics(command.namespace)
    answer = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    response = answer.getTopicsOfNamespaceResponse  # filled where it is: a long one is not copied
    response.request_id = command.request_id
    if command.topics_pattern:
        try:
            matches = topic_pattern(command.topics_pattern)
            names, response.filtered = await matching(matches, names), True
        except NotAllowed:  # the client filters by itself
            pass
    response.topics_hash = topics_hash(names)
    if command.topics_hash and command.topics_hash == response.topics_hash:
        response.changed = False
    else:
        response.topics.extend(names)
    connection.send(answer)
