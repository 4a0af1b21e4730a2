"""The rows of keys, against what is written by hand of them; `test_secured_region.py` asks a running node."""

from __future__ import annotations

from heliograph.kv.server.key_requests import check
from heliograph.model.errors import NotAllowed
from heliograph.model.roles.key_roles import PeerKeys
from local_meta.key_rows import KEYS
from tests.region_node.security.inside_calls import KEY_LETTERS, KEY_TABLE, key_request, key_table

TABLE = list(key_table(KEY_TABLE.read_text()))


def _may(keys: PeerKeys | None, key: str, call: str) -> bool:
    if keys is None:
        return True
    keys.name = "OWN"
    try:
        check(keys, *key_request(key, call), lambda lease: ())
    except NotAllowed:
        return False
    return True


def test_rows_say_what_the_table_says() -> None:
    wrong = [
        f"{letter} {call} {key}: the table says {letters}"
        for letter, role in KEY_LETTERS.items()
        for key, call, letters in TABLE
        if _may(KEYS.of(role), key, call) != (letter in letters)
    ]
    assert not wrong, "\n".join(wrong)


def test_each_row_has_a_line() -> None:
    keys = {key for key, _, _ in TABLE}
    assert not [
        row.prefix for row in KEYS.rows if row.prefix.startswith("/") and not any(row.holds(key) for key in keys)
    ]
