"""Scalable topics (protocol 21): what there is none of here, each command answered so that its client hears of it.

Is: the refusals. Isn't: claimed: CONNECTED does not set `supports_scalable_topics`, so clients that look there never
ask.
"""

from __future__ import annotations

from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.session.pulsar_session import PulsarSession

Kind = pb.BaseCommand
_WHY = "scalable topics are not available here: use a partitioned topic, whose partitions can grow"


def on_lookup(session: PulsarSession, command: pb.BaseCommand) -> None:
    update = pb.CommandScalableTopicUpdate(
        session_id=command.scalableTopicLookup.session_id, error=pb.NotAllowedError, message=_WHY
    )
    session.send(pb.BaseCommand(type=Kind.SCALABLE_TOPIC_UPDATE, scalableTopicUpdate=update))


def on_subscribe(session: PulsarSession, command: pb.BaseCommand) -> None:
    request_id = command.scalableTopicSubscribe.request_id
    answer = pb.CommandScalableTopicSubscribeResponse(request_id=request_id, error=pb.NotAllowedError, message=_WHY)
    session.send(pb.BaseCommand(type=Kind.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE, scalableTopicSubscribeResponse=answer))


def on_watch(session: PulsarSession, command: pb.BaseCommand) -> None:
    update = pb.CommandWatchScalableTopicsUpdate(
        watch_id=command.watchScalableTopics.watch_id, error=pb.NotAllowedError, message=_WHY
    )
    session.send(pb.BaseCommand(type=Kind.WATCH_SCALABLE_TOPICS_UPDATE, watchScalableTopicsUpdate=update))


def on_close(session: PulsarSession, command: pb.BaseCommand) -> None:
    """Does nothing: the session or watch was refused, so there is none to close."""
