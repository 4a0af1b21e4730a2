"""Deleting: what an admin takes away before a link has delivered it, so that its targets are told of it, and never left
to guess.

Is: truncation of a topic that has links, and the end of an incarnation that was deleted, kept until the topic of that
name is made again. Isn't: the SKIP(deleted) itself (`replicator.sending.link_sender` decides it), trimming by retention
(links hold that), or deletion in two steps (that leaves no copy anywhere).
Invariants: that a range is given up is durable before the first cursor of a link is moved over it; how far a deleted
incarnation reached is durable before it is deleted; what is published while that happens is not given up.
Where the topic ever held a transaction, or entries go by a tree, truncation leaves the cursors of links alone: a link
that has sent half of a transaction would not send its end, and what a region passes on would be lost behind it. What
they have not passed stays then until they have. Of an incarnation whose entries went by a tree nothing outlives it
either: whoever passes them on may still bring them.
Key: /deleted-topics/{tenant}/{namespace}/{topic's full name}; value: a version byte, then msgpack [[region, epoch,
incarnation, ledger, entry]...].
Source: docs/protocols/links.md, "What an admin deletes".
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.coordinates import Origin, Vector
from heliograph.model.errors import CorruptData, HeliographError
from heliograph.model.ledger_metadata import pack, unpack
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.model.topic_names import TopicName
from heliograph.wire.links.link_commands import SkipReason
from storage.managed_ledger.cursors import cursor_expiry

if TYPE_CHECKING:
    from replicator.log.replicated_log import ReplicatedLog
    from replicator.log.topic_state import TopicState

events = logging.getLogger("replicator")

LINK_CURSORS = "pulsar.repl."
REMOVED_MAX = 16
DEAD_MAX = 4


async def truncate(log: ReplicatedLog) -> dict[str, int]:
    """Everything that is confirmed goes, also what links have not delivered. Returns how many entries each cursor gave
    up.

    Raises as the ledger's `truncate`.
    """
    ledger, state = log.ledger, log.state
    links = [name for name in ledger.cursors if name.startswith(LINK_CURSORS)]
    if not links:
        return await ledger.truncate()
    upto, given_up = ledger.last_confirmed, dict[str, int]()
    if (
        not state.trees
        and state.transactions is None
        and any(ledger.cursors[name].mark_delete < upto for name in links)
    ):
        note_removed(state, ledger.first_position(), upto)
        await ledger.store_state()
        given_up = await cursor_expiry.move(ledger, upto, links)
    # A link that came meanwhile stays where it is, too: of what was published since, nothing is written down.
    return given_up | await ledger.truncate([name for name in ledger.cursors if not name.startswith(LINK_CURSORS)])


def note_removed(state: TopicState, first: Position, last: Position) -> None:
    """What lay in [first, last] was given up. Of more than REMOVED_MAX such ranges the two oldest become one."""
    removed = state.removed
    if removed:
        first = max(first, (removed[-1][1][0], removed[-1][1][1] + 1))
    if first <= last:
        removed = (*removed, (first, last))
    if len(removed) > REMOVED_MAX:
        removed = ((removed[0][0], removed[1][1]), *removed[2:])
    state.removed = removed


def past_removed(state: TopicState, read_at: Position) -> tuple[Position, SkipReason] | None:
    """Where a link goes on that stands at or before a range that was given up, and what it says of what lies before;
    None: there is none.
    """
    found = next((found for found in state.removed if found[1] >= read_at), None)
    if found is None:
        return None
    first, (ledger, entry) = found
    return (first, SkipReason.TRIMMED) if read_at < first else ((ledger, entry + 1), SkipReason.DELETED)


def was_removed(state: TopicState, position: Position) -> bool:
    return any(first <= position <= last for first, last in state.removed)


def untold_from(state: TopicState, vector: Vector, mark: Position) -> Position:
    """Where a link must begin, whose cursor stands at `mark` and whose target holds `vector`, to tell it of what was
    given up.

    The cursor was moved over that, so it does not know.
    """
    if not state.removed:
        return mark
    newest = state.outbox.last_at(state.removed[-1][1])
    for origin in state.own_origins():
        through = min(newest, state.local_prefix(origin))
        if state.origin_at(through) == origin and vector.prefix(origin) < through:
            mark = min(mark, vector.prefix(origin))
    return mark


def ends(state: TopicState) -> list[tuple[Origin, Position]]:
    """How far each incarnation of the topic in this region reached that no tree passes on, those before it among them:
    the newest DEAD_MAX.
    """
    own = [(origin, state.local_prefix(origin)) for origin in state.own_origins() if origin not in state.trees]
    return [*state.dead, *((origin, end) for origin, end in own if end > BEFORE_ALL)][-DEAD_MAX:]


async def remember(log: ReplicatedLog, meta: MetadataStore) -> None:
    """The topic is unloaded and about to be deleted here: where some region may lack something of it, that must outlive
    it. Raises what metadata raises.
    """
    state = log.state
    links = [cursor for name, cursor in log.ledger.cursors.items() if name.startswith(LINK_CURSORS)]
    found = ends(state)
    if found and (state.dead or state.removed or any(cursor.mark_delete < state.own_end() for cursor in links)):
        await meta.put(_key(log.topic), pack([[*origin, *end] for origin, end in found]))
    elif await meta.get(_key(log.topic)) is not None:  # of a deletion that was not carried out
        await meta.delete(_key(log.topic))


async def recall(log: ReplicatedLog, meta: MetadataStore) -> None:
    """The topic was opened. Where nothing was stored in it yet, it may be new, and have been there before.

    Raises what metadata and the ledger raise; it is closed then. What cannot be read is left where it is: targets go on
    waiting for what they lack.
    """
    if log.ledger.last_confirmed > BEFORE_ALL:
        return
    try:
        found = await meta.get(_key(log.topic))
        if found is None:
            return
        try:
            dead = tuple(
                ((region, epoch, incarnation), (a, b))
                for region, epoch, incarnation, a, b in unpack("end of a deleted topic", found[0])
            )
        except (CorruptData, TypeError, ValueError) as error:
            events.error("topic.end_unreadable", extra={"topic": log.topic, "error": str(error)})
            return
        if dead != log.state.dead:  # else it was taken over, and whoever did so did not come to delete it
            log.state.dead = dead
            await log.ledger.store_state()
        await meta.delete(_key(log.topic))
    except HeliographError:
        await log.close()
        raise


def _key(topic: str) -> str:
    return f"/deleted-topics/{TopicName.parse(topic).namespace}/{topic}"
