"""Which topics are brought in step, and in which order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from heliograph.runtime.task_set import TaskSet
from replicator.manager.link_manager import LinkSettings
from replicator.manager.subscription_rounds import SubscriptionRounds

COUNT = 300


class Log:
    """One that is due until its round, and counts how often any is compared with another."""

    compared = 0
    closed, replicate_all = None, False

    def __init__(self, topic: str, rounds: list[str]) -> None:
        self.topic, self._rounds = topic, rounds
        self.synced = SimpleNamespace(active=True, due=lambda: topic not in rounds)
        self.subscriptions = self

    async def round(self, now_ms: int) -> None:
        self._rounds.append(self.topic)
        await asyncio.sleep(0)

    def __eq__(self, other: object) -> bool:
        Log.compared += 1
        return self is other

    def __hash__(self) -> int:
        return hash(self.topic)


def test_topics_that_wait_for_a_round_are_not_compared_with_each_other() -> None:
    async def test() -> None:
        done: list[str] = []
        logs = {str(at): Log(str(at), done) for at in range(COUNT)}
        work = TaskSet()
        manager: Any = SimpleNamespace(
            logs=logs, settings=LinkSettings(syncs_max=2), spawn=work.spawn, clock=SimpleNamespace(wall_ms=lambda: 0)
        )
        rounds = SubscriptionRounds(manager)
        for log in logs.values():
            rounds.keep(log)  # type: ignore[arg-type]
        for _ in range(3):
            rounds.begin()
            await asyncio.sleep(0)
        for _ in range(COUNT):
            await asyncio.sleep(0)
        assert done == list(logs) and Log.compared < COUNT

    asyncio.run(test())
