"""What clients took is measured where each of them has gone on, and told of those that have."""

from __future__ import annotations

from typing import Any

import pytest

from region_node.dr.rehearsal.client_times import text, told


def found(**changed: Any) -> dict[str, Any]:
    return {"count": 3, "ready": 3, "acked_s": [1.0, 3.0, 2.0], "read_s": [2.0, 4.0, 3.0], "said": "", **changed}


def test_of_all_clients_the_half_and_the_last() -> None:
    part = told(found())
    assert part["measured"] and part["acked"] == {"clients": 3, "p50_s": 2.0, "max_s": 3.0}
    assert (
        text(part) == "3 of 3 published after 2.00 s (p50), 3.00 s (max); 3 of 3 read after 3.00 s (p50), 4.00 s (max)"
    )


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"read_s": [2.0, 4.0], "said": "refused"}, "2 of 3 read after 3.00 s (p50), 4.00 s (max); refused"),
        ({"acked_s": []}, "none of 3 published"),
        ({"count": 0, "acked_s": [], "read_s": []}, "the broker that had them has ended"),
    ],
)
def test_where_one_has_not_it_is_not_measured(changed: dict[str, Any], said: str) -> None:
    part = told(found(**changed))
    assert not part["measured"] and said in text(part)
