"""Sessions of Fetch have bounds: in one, and in all of a broker's."""

from __future__ import annotations

import random
from typing import Any

import pytest

from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.session.fetch_sessions import FetchSessions


def parts(*numbers: int) -> dict[Any, dict[str, Any]]:
    return {("t", number): {} for number in numbers}


def test_a_session_ends_where_it_grows_beyond_the_bound() -> None:
    sessions, ann = FetchSessions(1000, random.Random(1), session_partitions_max=3), ("ann",)
    assert sessions.begin(ann, False, parts(0, 1, 2, 3)) is None and not len(sessions)
    session = sessions.begin(ann, False, parts(0, 1, 2))
    assert session is not None
    sessions.change(session, parts(3), forgotten=[("t", 0)])
    with pytest.raises(Refused) as refused:
        sessions.change(session, parts(4))
    assert refused.value.code == Code.FETCH_SESSION_ID_NOT_FOUND and not len(sessions)


def test_sessions_have_a_bound_of_partitions_together() -> None:
    sessions, ann = FetchSessions(1000, random.Random(1), partitions_max=5), ("ann",)

    def begin(count: int) -> int:
        made = sessions.begin(ann, False, parts(*range(count)))
        assert made is not None
        return made.number

    first, second = begin(2), begin(2)
    sessions.go_on(first, ann, 1, False)
    begin(3)
    sessions.go_on(first, ann, 2, False)
    with pytest.raises(Refused) as refused:
        sessions.go_on(second, ann, 1, False)
    assert refused.value.code == Code.FETCH_SESSION_ID_NOT_FOUND
    sessions.end(first, ann)
    begin(2)
    assert len(sessions) == 2, "what an ended one had counts no more"
