"""Subscriptions of a broker, as their replication asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from region_node.replication.replicated_subscriptions import replicate_by_policy


class Log:
    def __init__(self, replicate_all: bool) -> None:
        self.replicate_all = replicate_all
        self.made = self.enabled = 0

    @property
    def subscriptions(self) -> Log:
        self.made += 1
        return self

    def enable_all(self) -> None:
        self.enabled += 1


class Topic:
    def __init__(self, log: object) -> None:
        self.log = log


@pytest.mark.parametrize("policy", [True, False])
def test_nothing_is_kept_in_step_where_nobody_asked(policy: bool) -> None:
    log = Log(policy)
    topic: Any = Topic(log)
    replicate_by_policy(topic)
    assert (log.made, log.enabled) == (policy, policy)
    volatile: Any = Topic(object())
    replicate_by_policy(volatile)
