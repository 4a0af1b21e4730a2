"""The start of a Raft member: from what lies on its disk to a core that takes part.

Is: the order of it: the machine's own table, the log, a table that is made again, a snapshot that the machine becomes.
Isn't: what holds of the log (`recovery`), or what the member does from then on (`raft_node`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from heliograph.model.errors import CorruptData
from heliograph.raft.core import RaftCore
from heliograph.raft.disk.log_storage import LogStorage
from heliograph.raft.disk.recovery import Recovered
from heliograph.raft.founding import Founders
from heliograph.raft.member.snapshotter import Snapshotter
from heliograph.raft.messages import Config, SnapshotMeta
from heliograph.raft.ports import RaftSettings, StateMachine
from heliograph.raft.raft_log import RaftLog
from heliograph.raft.starts import Starts
from heliograph.runtime.clock import Clock, Rng

T = TypeVar("T")
events = logging.getLogger("heliograph.raft.starting")


@dataclass(frozen=True, slots=True)
class Started:
    core: RaftCore
    base: int
    """The index that the machine is the state of."""
    others: bool
    """Whether other voters have what this member has, as far as it knows."""


async def recovered(
    node_id: str,
    first: Config,
    machine: StateMachine,
    snapshotter: Snapshotter,
    storage: LogStorage,
    settings: RaftSettings,
    clock: Clock,
    rng: Rng,
    *,
    others: bool,
) -> Started:
    """first: the configuration that the group was founded with. others: whether there are other voters, as the settings
    say. Raises OSError, CorruptData.
    """
    loop = asyncio.get_running_loop()
    opening: asyncio.Future[SnapshotMeta | None] = loop.create_future()
    snapshotter.open(partial(_settle, opening))
    kept: SnapshotMeta | None = None
    damage: CorruptData | None = None
    try:
        kept = await opening
    except CorruptData as error:
        damage = error
    recovering: asyncio.Future[Recovered | None] = loop.create_future()
    lost = kept is None and machine.kept is not None
    storage.recover_soon(kept, partial(_settle, recovering), lost, others, rng.randrange(1, 1 << 63))
    try:
        state = await recovering
    except CorruptData:
        if damage is not None:  # the log alone does not make up for it
            raise damage from None
        raise
    assert state is not None
    if damage is not None:  # the table is made again
        source = "the other voters" if state.owed else "snapshot and log"
        events.warning("table.rebuilt", extra={"node": node_id, "error": str(damage), "source": source})
        discarding: asyncio.Future[None] = loop.create_future()
        snapshotter.discard(partial(_settle, discarding, None))
        await discarding
    base, base_term, config = 0, 0, first
    if state.owed is not None and first.voters == (node_id,):
        config = Config(())  # it was founded alone, and has lost what came of that: those who came later tell it
    if state.base is not None:
        base, base_term, config = state.base.index, state.base.term, state.base.config
        if state.base is not kept:
            restoring: asyncio.Future[None] = loop.create_future()
            snapshotter.restore(state.base, partial(_settle, restoring, None))
            await restoring
    core = RaftCore(
        node_id,
        config=config,
        term=state.term,
        vote=state.vote,
        log=RaftLog(base, base_term, state.entries),
        snapshot=state.snapshot,
        settings=settings.core,
        rng=rng,
        now=clock.monotonic(),
        commit=state.commit,
        owed=state.owed,
        founders=Founders(node_id, state.life, first.voters, state.lives, settings.later, enrolled=state.enrolled),
        proven=state.proven,
        starts=Starts(state.starts),
        standing=state.standing,
    )
    if core.unproven and core.founders.later:
        events.warning(
            "group.asked_for",
            extra={"node": node_id, "later": core.founders.later, "enrolled": core.founders.enrolled},
        )
    return Started(core, base, others if state.others is None else state.others)


def _settle(future: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
