"""How a process of ours starts another: of a checkout from the current directory, of the wheel never from there."""

from __future__ import annotations

import pytest

import region_node
from region_node.runtime.module_command import module_command


def test_in_a_checkout_the_current_directory_stays_in_front() -> None:
    assert module_command("python", "region_node.process", "--role", "meta") == [
        "python",
        "-m",
        "region_node.process",
        "--role",
        "meta",
    ]


def test_of_the_wheel_the_current_directory_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_node, "__path__", ["/site-packages/heliograph_server/region_node"])
    assert module_command("python", "region_node.process") == ["python", "-P", "-m", "region_node.process"]
