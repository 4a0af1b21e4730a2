"""RaftCores that a test steps by hand."""

from __future__ import annotations

import random

from heliograph.raft.core import Actions, CoreSettings, RaftCore, RaftRole
from heliograph.raft.messages import (
    Config,
    Entry,
    Message,
    VoteReply,
)
from heliograph.raft.raft_log import RaftLog
from heliograph.raft.starts import Starts, StartsRecord

THREE = Config(("a", "b", "c"))
SETTINGS = CoreSettings(election_timeout_s=1.0, heartbeat_s=0.1, append_bytes_max=100, inflight_appends_max=2)


def make(
    config: Config = THREE,
    *,
    cls: type[RaftCore] = RaftCore,
    name: str = "a",
    term: int = 0,
    vote: str = "",
    entries: list[Entry] | None = None,
    starts: StartsRecord | None = None,
) -> RaftCore:
    core = cls(
        name,
        config=config,
        term=term,
        vote=vote,
        log=RaftLog(0, 0, entries or []),
        snapshot=None,
        settings=SETTINGS,
        rng=random.Random(1),
        now=0.0,
        starts=Starts(starts),
    )
    core.take_actions()
    return core


def settle(core: RaftCore) -> Actions:
    """Takes the next batch and stores it."""
    actions = core.take_actions()
    if actions.stores:
        core.on_durable(actions.durable_mark)
    return actions


def elect(core: RaftCore, now: float = 2.0) -> Actions:
    """Makes it leader by the votes of b and c."""
    core.tick(now)
    for pre in (True, False):
        settle(core)
        for voter in ("b", "c")[: len(core.config.voters) // 2]:
            core.receive(voter, VoteReply(core.term + pre, True, pre), now)
    assert core.role is RaftRole.LEADER
    return settle(core)


def sent(actions: Actions, to: str) -> list[Message]:
    return [message for receiver, message in actions.sends if receiver == to]
