"""A row says whose keys they are, and a peer has those of one name."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.model.errors import NotAllowed
from heliograph.model.roles.call_roles import BOOKIE, BROKER, META
from heliograph.model.roles.key_roles import KeyRoles, KeyRow, PeerKeys

ALL = KeyRow("", read=(BROKER,), write=(BROKER,), watch=(BROKER,))
ROWS = KeyRoles(
    (ALL, KeyRow("/a/", own=(BOOKIE,)), KeyRow("/b/", own=(BOOKIE,), watch=(BOOKIE,)), KeyRow("/c", make=(BOOKIE,)))
)


def bookie() -> PeerKeys:
    keys = ROWS.of(BOOKIE)
    assert keys is not None
    return keys


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([KeyRow("/a/")], TypeError),
        ([KeyRow("/a/", read=("replicator",))], TypeError),
        ([KeyRow("/a/", read=(BOOKIE,)), KeyRow("/a/", watch=(BOOKIE,))], ValueError),
    ],
)
def test_a_row_that_says_no_role_ends_the_start(rows: list[Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        KeyRoles(rows)


def test_one_that_may_do_everything_is_asked_nothing_and_one_without_a_row_may_do_nothing() -> None:
    assert ROWS.of(BROKER) is None
    for role in (META, "replicator", ""):
        keys = ROWS.of(role)
        assert keys is not None
        with pytest.raises(NotAllowed):
            keys.read("/a/x")


def test_the_first_name_is_the_only_one() -> None:
    keys = bookie()
    keys.write("/a/one")
    keys.read("/b/one")
    for key in ("/a/two", "/b/two", "/a/one/more", "/a/", "/d/one"):
        with pytest.raises(NotAllowed, match=f"bookie one may not write {key}"):
            keys.write(key)
        with pytest.raises(NotAllowed):
            keys.read(key)
    bookie().write("/a/two")


def test_a_listing_and_a_watch_lie_below_one_row() -> None:
    keys = KeyRoles((KeyRow("/a/", read=(BOOKIE,), watch=(BOOKIE,)), KeyRow("/c", read=(BOOKIE,)))).of(BOOKIE)
    assert keys is not None
    keys.read_range("/a/", "/a0")
    keys.read_range("/a/x\x00", "/a/y")
    keys.watch("/a/x")
    for start, end in (("/a/", "/a1"), ("/", "/a0"), ("/a", "/a0"), ("/c", "/c0")):
        with pytest.raises(NotAllowed):
            keys.read_range(start, end)
    for prefix in ("", "/", "/a", "/c"):
        with pytest.raises(NotAllowed):
            keys.watch(prefix)


def test_what_is_made_is_never_changed() -> None:
    keys = bookie()
    keys.write("/c", absent=True)
    for key, absent in (("/c", False), ("/c/x", True)):
        with pytest.raises(NotAllowed):
            keys.write(key, absent=absent)
