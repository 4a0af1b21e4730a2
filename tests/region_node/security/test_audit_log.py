"""The audit log takes what a client says, however much and however deep that is, and shows no secret of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from heliograph.runtime.clock import Clock
from region_node.security.audit_log import KEPT, AuditLog

SECRET = "do-not-tell"


class Still(Clock):
    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 0


def changed(audit: AuditLog, **more: Any) -> dict[str, Any]:
    audit.change(role="r", address="a", method="POST", path="/p", status=200, **more)
    return audit.newest(1)[0]


def nested(levels: int) -> Any:
    value: Any = SECRET
    for _ in range(levels):
        value = [value]
    return value


class Counted(list[Any]):
    """Counts what is read of it."""

    read = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.read += 1
            yield item


@pytest.mark.parametrize("field", ["given", "before", "after"])
@pytest.mark.parametrize("levels", [600, 100_000])
def test_what_is_nested_deep_is_recorded_without_its_depth(field: str, levels: int) -> None:
    told = changed(AuditLog(Still()), **{field: {"partitions": 4, "x": nested(levels)}})
    assert told[field]["partitions"] == 4 and "…" in str(told[field]) and SECRET not in str(told)


@pytest.mark.parametrize("field", ["given", "before", "after"])
def test_no_more_is_read_of_a_value_than_is_recorded(field: str) -> None:
    many = Counted(["t"] * 260_000)
    told = changed(AuditLog(Still()), **{field: {"topics": many, "more": 1}})
    assert told[field]["topics"][0] == "t" and told[field]["topics"][-1] == "…"
    assert many.read < 1000 and len(json.dumps(told)) < 3000


def test_a_long_text_is_cut_and_says_how_long_it_was() -> None:
    told = changed(AuditLog(Still()), given="x" * 1_000_000, reason="y" * 1_000_000)
    assert told["given"].startswith("xxx") and "… (1000000 characters)" in told["given"]
    assert len(told["given"]) < 2100 and len(told["reason"]) < 2100


def test_what_is_given_is_recorded_also_where_the_change_is_too_long_to_show() -> None:
    assert "given" not in changed(AuditLog(Still()), given={"n": 1}, before={"n": 0}, after={"n": 1})
    told = changed(AuditLog(Still()), given={"n": 1}, before=["a"] * 9999, after=["a"] * 9999 + ["b"])
    assert told["given"] == {"n": 1}


def test_what_cannot_be_read_is_recorded_as_unreadable() -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError("no")

    told = changed(AuditLog(Still()), given={"a": Broken()}, before=10**9999)
    assert told["given"] == "unreadable" and told["status"] == 200 and told["path"] == "/p"
    assert changed(AuditLog(Still()), given={1: b"\xff", "lone": "\ud800", "set": {1}})["given"]["set"] == [1]


def test_what_is_kept_is_bounded_in_size(caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog(Still(), kept_chars=10_000)
    with caplog.at_level(logging.INFO):
        for number in range(50):
            changed(audit, given={"number": number, "long": "x" * 1500})
            audit.note({"event": "promise.broken", "long": "x" * 1500})
    kept = audit.newest(KEPT)
    assert 4 <= len(kept) <= 10 and kept[-2]["given"]["number"] == 49 and kept[-1]["method"] == "EVENT"
    assert sum(record.message == "admin.change" for record in caplog.records) == 50


def test_what_is_refused_pushes_out_no_change() -> None:
    audit = AuditLog(Still())
    for number in range(3 * KEPT):
        if not number % KEPT:
            audit.change(role="admin", address="a", method="PUT", path=f"/{number}", status=204)
        audit.change(role="nobody", address="a", method="PUT", path=f"/{number}", status=403, refused=True)
    kept = audit.newest(KEPT)
    assert [one["path"] for one in kept if one["role"] == "admin"] == ["/0", f"/{KEPT}", f"/{2 * KEPT}"]
    assert kept[-1]["path"] == f"/{3 * KEPT - 1}" and len(kept) == KEPT // 4 + 3
    assert [one["role"] for one in kept[:4]] == ["admin", "admin", "admin", "nobody"], "the newest last"


@pytest.mark.parametrize(
    "said",
    [
        f"pulsar://me:{SECRET * 9}@host",
        f"Bearer {SECRET * 9}",
        f"Basic {'c2VjcmV0' * 9}",
        f"eyJhbGciOi.eyJzdWIi.{SECRET}",
        f"authorization: {SECRET * 9}",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET * 9}",
        f'my_password="{SECRET * 9}"',
        "AKIADONOTTELL1234567",
    ],
)
def test_a_cut_makes_no_secret_unknown(said: str) -> None:
    for before in range(1880, 2000):
        given = [("x" * 7 + " ") * (before // 8) + "x" * (before % 8) + " " + said]
        told = str(changed(AuditLog(Still()), given=given))
        assert not [part for part in ("do-n", "c2Vj", "AKIADO", "eyJz") if part in told], before
