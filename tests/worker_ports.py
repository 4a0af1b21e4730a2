"""Pytest workers start their instances on ports of their own: while one is down, no other is given its ports."""

from __future__ import annotations

import os

from region_node.instance.plan.loopback_ports import RANGE_VARIABLE

_LOWEST, _ABOVE = 10_000, 32_768


def take_own_ports() -> None:
    """Of this worker, for all that it starts; a range that is given already stays."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    width = (_ABOVE - _LOWEST) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    lowest = _LOWEST + worker * width
    os.environ.setdefault(RANGE_VARIABLE, f"{lowest}-{lowest + width - 1}")
