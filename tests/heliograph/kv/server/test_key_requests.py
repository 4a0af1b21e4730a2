"""What a request asks for is held against the keys of its peer, also where it names them by a lease or a counter."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.kv.machine_commands import CommandKind, command, txn_fields
from heliograph.kv.metadata_store import Check, Delete, Op, Put
from heliograph.kv.server.key_requests import check
from heliograph.model.errors import NotAllowed
from heliograph.model.roles.call_roles import BOOKIE
from heliograph.model.roles.key_roles import KeyRoles, KeyRow
from heliograph.wire.metadata_frames import Frame, body

ROWS = KeyRoles((KeyRow("/own/", own=(BOOKIE,)), KeyRow("/seen/", read=(BOOKIE,)), KeyRow("ids", write=(BOOKIE,))))
LEASES = {1: ["/own/a"], 2: ["/own/a", "/owners/x"], 3: ["/own/b"]}


def _may(kind: int, payload: bytes) -> bool:
    keys = ROWS.of(BOOKIE)
    assert keys is not None
    keys.write("/own/a")
    try:
        check(keys, kind, payload, lambda lease: LEASES.get(lease, []))
    except NotAllowed:
        return False
    return True


def _command(kind: CommandKind, *fields: Any) -> bool:
    return _may(Frame.COMMAND, command(kind, fields))


def test_a_lease_is_of_who_may_write_all_that_lies_under_it() -> None:
    for lease, wanted in ((1, True), (2, False), (3, False), (9, True)):
        assert _may(Frame.RENEW, body(lease)) is wanted
        assert _command(CommandKind.REVOKE, lease) is wanted


@pytest.mark.parametrize(
    ("ops", "wanted"),
    [
        ([Put("/own/a", b""), Check("/seen/x", 1)], True),
        ([Put("/own/a", b""), Delete("/seen/x")], False),
        ([Put("/own/a", b""), Put("/owners/x", b"")], False),
        ([Check("/owners/x", 1)], False),
        ([], True),
    ],
)
def test_each_operation_of_a_transaction_counts(ops: list[Op], wanted: bool) -> None:
    assert _command(CommandKind.TXN, *txn_fields(ops)) is wanted


def test_counters_have_rows_too() -> None:
    assert _command(CommandKind.NEXT_IDS, "ids", 0, 0)
    assert not _command(CommandKind.NEXT_IDS, "other", 1, 0)


def test_what_is_not_known_is_refused() -> None:
    assert _command(CommandKind.GRANT, 3000) and _command(CommandKind.SESSION)
    assert not _may(Frame.COMMAND, b"") and not _may(Frame.COMMAND, command(CommandKind.TXN, [1, 2]))
    assert not _may(Frame.COMMAND, command(99, []))  # type: ignore[arg-type]
    assert not _command(CommandKind.REVOKE, "x")
