"""Topic lists over frames: GET_TOPICS_OF_NAMESPACE, WATCH_TOPIC_LIST, WATCH_TOPIC_LIST_CLOSE.

Is: one handler a command. Isn't: a watcher (`topic_watchers`), or the lists
(`region_node.topics.serving.topic_listing`).
Source: docs/protocols/pulsar.md, "Topic lists".
"""

from __future__ import annotations

from heliograph.model.errors import NotAllowed
from heliograph.runtime.throttle import pause
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.session.pulsar_session import PulsarSession
from region_node.topics.serving.topic_listing import matching, paced_hash, slices, topic_pattern


def on_watch(session: PulsarSession, command: pb.BaseCommand) -> None:
    watch = command.watchTopicList
    if session.takes(watch.request_id):
        session.answer(watch, session.watchers.open(watch))


def on_watch_close(session: PulsarSession, command: pb.BaseCommand) -> None:
    session.watchers.shut(command.watchTopicListClose.watcher_id)
    session.send_success(command.watchTopicListClose.request_id)


def on_topics(session: PulsarSession, command: pb.BaseCommand) -> None:
    ask = command.getTopicsOfNamespace
    session.answer(ask, _topics(session, ask))


async def _topics(session: PulsarSession, command: pb.CommandGetTopicsOfNamespace) -> None:
    async with session.watchers.listing:
        await session.room()
        if not session.closed:
            await _list_topics(session, command)


async def _list_topics(session: PulsarSession, command: pb.CommandGetTopicsOfNamespace) -> None:
    topics = session.broker.topics
    session.identity.check_list(command.namespace)
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
    response.topics_hash = await paced_hash(names)
    if command.topics_hash and command.topics_hash == response.topics_hash:
        response.changed = False
    else:
        for some in slices(names):
            response.topics.extend(some)
            await pause()
    session.send(answer)
