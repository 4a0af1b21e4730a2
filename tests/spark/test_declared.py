"""Declared columns: JSON payloads to Arrow, good and bad ones mixed, against the standard library's parser."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from heliograph.model.errors import ConfigError  # noqa: E402
from heliograph.spark.declared import CORRUPT, Declared  # noqa: E402
from heliograph.spark.source import RAW  # noqa: E402

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("rate", pa.float64()), ("tags", pa.list_(pa.string())), (CORRUPT, pa.string())])


def rows(payloads: list[bytes], schema: Any = SCHEMA, mode: str = "PERMISSIVE", **about: list[Any]) -> list[dict[str, Any]]:
    made = Declared(schema, mode).batch(payloads, about, [f"t 1:{n}:-1" for n in range(len(payloads))])
    assert made.schema == schema
    found: list[dict[str, Any]] = made.to_pylist()
    return found


def row(**given: Any) -> dict[str, Any]:
    return {"id": None, "name": None, "rate": None, "tags": None, CORRUPT: None} | given


def test_fields_are_taken_by_name_and_the_rest_is_left() -> None:
    payloads = [b'{"id": 1, "name": "a", "more": {"x": 1}}', b' {"rate": 2.5,\n "tags": ["x", "y"]}', b'{"name": null}', b"{}"]
    assert rows(payloads) == [row(id=1, name="a"), row(rate=2.5, tags=["x", "y"]), row(), row()]


BAD = (b"", b"  ", b"nonsense", b'{"id": ', b"[1]", b"3", b"null", b'{"id": "x"}', b'{"id": 1}{"id": 2}', b'{"id": 1} {"id": 2}', b"\xff\xfe", b'{"tags": 3}')


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_payload_is_put_aside_and_its_neighbours_are_kept(bad: bytes) -> None:
    found = rows([b'{"id": 1}', bad, b'{"id": 2}'])
    assert found == [row(id=1), row(**{CORRUPT: bad.decode(errors="replace")}), row(id=2)]
    assert rows([b'{"id": 1}', bad, b'{"id": 2}'], mode="DROPMALFORMED") == [row(id=1), row(id=2)]
    with pytest.raises(ConfigError, match="t 1:1:-1"):
        rows([b'{"id": 1}', bad, b'{"id": 2}'], mode="FAILFAST")


@pytest.mark.parametrize("seed", range(20))
def test_any_mixture_is_what_the_standard_library_says(seed: int) -> None:
    rng = random.Random(seed)
    payloads, expected = [], []
    for n in range(rng.randrange(1, 200)):
        if rng.random() < rng.choice((0.0, 0.1, 0.9)):
            payloads.append(rng.choice((b"x", b"{", b'{"id": true}', b"[]")))
            expected.append(row(**{CORRUPT: payloads[-1].decode()}))
        else:
            given = {k: v for k, v in {"id": n, "name": f"n {n} \u00fc\n", "rate": n / 7, "tags": [str(n)] * (n % 3)}.items() if rng.random() < 0.8}
            payloads.append(json.dumps(given, indent=rng.choice((None, 1))).encode())
            expected.append(row(**given))
    assert rows(payloads) == expected


def test_times_are_read_with_and_without_a_zone() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    payloads = [b'{"at": "2026-01-02T03:04:05Z"}', b'{"at": "2026-01-02 03:04:05.5"}', b'{"at": "2026-01-02T03:04:05+01:00"}', b'{"at": "soon"}', b"{}"]
    first = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert [r["at"] for r in rows(payloads, schema)] == [first, first.replace(microsecond=500_000), first.replace(hour=2), None, None]


def test_columns_of_the_message_stand_beside_those_of_its_payload() -> None:
    schema = pa.schema([("_topic", pa.string()), ("id", pa.int32())])
    assert rows([b'{"id": 1}', b"x"], schema, _topic=["a", "b"]) == [{"_topic": "a", "id": 1}, {"_topic": "b", "id": None}]


@pytest.mark.parametrize(
    ("schema", "mode", "what"),
    [
        (pa.schema([("a", pa.binary())]), "PERMISSIVE", "JSON has no such value"),
        (pa.schema([("a", pa.map_(pa.string(), pa.string()))]), "PERMISSIVE", "JSON has no such value"),
        (pa.schema([("a", pa.struct([("t", pa.timestamp("us", "UTC"))]))]), "PERMISSIVE", "a.t is a timestamp inside"),
        (pa.schema([("_topic", pa.string())]), "PERMISSIVE", "no column of the payload"),
        (pa.schema([("a", pa.string()), (CORRUPT, pa.int64())]), "PERMISSIVE", "must be a string"),
        (pa.schema([("a", pa.string())]), "LAZY", "mode is 'LAZY'"),
    ],
)
def test_what_cannot_be_declared_is_refused(schema: Any, mode: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Declared(schema, mode)


def test_the_raw_columns_are_known_by_their_names() -> None:
    assert {"topic", "value", "coordinate", "batch_index"} <= RAW and "region:int" not in RAW and all(name.islower() for name in RAW)
