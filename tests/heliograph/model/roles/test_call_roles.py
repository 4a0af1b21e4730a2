"""A row says who may make a call, or the process does not start."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from heliograph.model.roles.call_roles import BOOKIE, BROKER, CallRoles, CallRow


class Call(IntEnum):
    LOOK = 1
    CHANGE = 2


LOOK, CHANGE = CallRow(Call.LOOK, (BROKER, BOOKIE)), CallRow(Call.CHANGE, (BROKER,))


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([LOOK], TypeError),
        ([LOOK, CHANGE, CHANGE], ValueError),
        ([LOOK, CallRow(Call.CHANGE, ())], TypeError),
        ([LOOK, CallRow(Call.CHANGE, ("replicator",))], TypeError),
    ],
)
def test_a_call_that_says_no_role_ends_the_start(rows: list[Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        CallRoles(rows, Call)


def subject(role: str) -> dict[str, Any]:
    return {"subject": ((("organizationalUnitName", role),), (("commonName", f"{role}.us"),))}


def test_a_peer_calls_what_its_certificates_role_may() -> None:
    rows = CallRoles([LOOK, CHANGE], Call)
    assert rows.of(subject(BROKER), tls=True) == {1, 2}
    assert rows.of(subject(BOOKIE), tls=True) == {1}
    assert not rows.of(subject("replicator"), tls=True) and not rows.of(None, tls=True)
    assert rows.of(None, tls=False) == {1, 2}, "who speaks plainly has no role"
