"""What is said of an error."""

from __future__ import annotations

import pytest

from heliograph.model.errors import NotLeader, reason_of


@pytest.mark.parametrize(
    ("error", "otherwise", "said"),
    [
        (OSError("connection refused"), "no answer", "connection refused"),
        (TimeoutError(), "no answer", "no answer"),
        (TimeoutError(), "", "TimeoutError"),
        (NotLeader(None), "no answer", "no leader is known"),
    ],
)
def test_an_error_without_a_text_is_told_by_what_happened(error: BaseException, otherwise: str, said: str) -> None:
    assert reason_of(error, otherwise) == said
