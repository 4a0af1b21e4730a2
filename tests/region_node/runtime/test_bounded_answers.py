"""The body of an answer: no more of it is read than its bound, and some."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from region_node.runtime.bounded_answers import read_at_most


@pytest.mark.parametrize(("size", "whole"), [(0, True), (3, True), (4, True), (5, False), (1_000, False)])
def test_an_answer_is_read_up_to_its_bound(size: int, whole: bool) -> None:
    read: list[bytes] = []

    async def iter_chunked(_: int) -> AsyncIterator[bytes]:
        for _ in range(size):
            read.append(b"x")
            yield b"x"

    answer: Any = SimpleNamespace(content=SimpleNamespace(iter_chunked=iter_chunked))
    assert asyncio.run(read_at_most(answer, 4)) == (b"x" * size if whole else None)
    assert len(read) == min(size, 5)
