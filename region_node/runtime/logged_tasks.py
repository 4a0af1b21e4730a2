"""Background work of a broker's topics and connections: a failure that nobody expected is an event of its log."""

from __future__ import annotations

import logging

from heliograph.runtime.task_set import TaskSet

log = logging.getLogger("region_node.topics")


def logged_tasks() -> TaskSet:
    """Its failures are `task.failed`, with the trace."""
    return TaskSet(on_error=lambda error: log.error("task.failed", exc_info=error))
