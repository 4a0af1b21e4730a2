"""What a receiver of links is given is whole, and stays as it is."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from replicator.receiving.link_session import LinkSession


def test_nobody_gives_it_anything_later() -> None:
    session = LinkSession(lambda buffers: None)
    with pytest.raises(FrozenInstanceError):
        session.peer = "eu"  # type: ignore[misc]
    assert session.peer == "" and session.hold is None
    session.refuse("nobody is there to hear it")
