"""Declared columns: JSON payloads to Arrow, good and bad ones mixed, against the standard library's parser."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from heliograph.model.errors import ConfigError  # noqa: E402
from heliograph.spark.columns.declared_columns import CORRUPT, Declared  # noqa: E402
from heliograph.spark.scan.task_reading import RAW  # noqa: E402

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("rate", pa.float64()),
        ("tags", pa.list_(pa.string())),
        (CORRUPT, pa.string()),
    ]
)


def rows(
    payloads: list[bytes], schema: Any = SCHEMA, mode: str = "PERMISSIVE", **about: list[Any]
) -> list[dict[str, Any]]:
    columns = {name: pa.array(values, schema.field(name).type) for name, values in about.items()}
    made = Declared(schema, mode).batch(payloads, columns, lambda row: f"t 1:{row}:-1")
    assert made.schema == schema
    found: list[dict[str, Any]] = made.to_pylist()
    return found


def row(**given: Any) -> dict[str, Any]:
    return {"id": None, "name": None, "rate": None, "tags": None, CORRUPT: None} | given


def test_fields_are_taken_by_name_and_the_rest_is_left() -> None:
    payloads = [
        b'{"id": 1, "name": "a", "more": {"x": 1}}',
        b' {"rate": 2.5,\n "tags": ["x", "y"]}',
        b'{"name": null}',
        b"{}",
    ]
    assert rows(payloads) == [row(id=1, name="a"), row(rate=2.5, tags=["x", "y"]), row(), row()]


BAD = (
    b"",
    b"  ",
    b"nonsense",
    b'{"id": ',
    b"[1]",
    b"3",
    b"null",
    b'{"id": "x"}',
    b'{"id": 1}{"id": 2}',
    b'{"id": 1} {"id": 2}',
    b"\xff\xfe",
    b'{"tags": 3}',
)


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
            given = {
                k: v
                for k, v in {"id": n, "name": f"n {n} \u00fc\n", "rate": n / 7, "tags": [str(n)] * (n % 3)}.items()
                if rng.random() < 0.8
            }
            payloads.append(json.dumps(given, indent=rng.choice((None, 1))).encode())
            expected.append(row(**given))
    assert rows(payloads) == expected


def test_times_are_read_with_and_without_a_zone() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    payloads = [
        b'{"at": "2026-01-02T03:04:05Z"}',
        b'{"at": "2026-01-02 03:04:05.5"}',
        b'{"at": "2026-01-02T03:04:05+01:00"}',
        b'{"at": "soon"}',
        b"{}",
    ]
    first = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert [r["at"] for r in rows(payloads, schema)] == [
        first,
        first.replace(microsecond=500_000),
        first.replace(hour=2),
        None,
        None,
    ]
    assert [r["at"] for r in rows([payloads[0], b"{}", payloads[0]], schema)] == [first, None, first], (
        "all of them in UTC"
    )
    assert [r["at"] for r in rows([payloads[0], b'{"at": "Z"}'], schema)] == [first, None]


def test_columns_of_the_message_stand_beside_those_of_its_payload() -> None:
    schema = pa.schema([("_topic", pa.string()), ("id", pa.int32())])
    assert rows([b'{"id": 1}', b"x"], schema, _topic=["a", "b"]) == [
        {"_topic": "a", "id": 1},
        {"_topic": "b", "id": None},
    ]


@pytest.mark.parametrize(
    ("schema", "mode", "what"),
    [
        (pa.schema([("a", pa.duration("us"))]), "PERMISSIVE", "no value for"),
        (pa.schema([("a", pa.map_(pa.int32(), pa.string()))]), "PERMISSIVE", "keys are strings"),
        (pa.schema([("_topic", pa.string())]), "PERMISSIVE", "no column of the payload"),
        (pa.schema([("a", pa.string()), (CORRUPT, pa.int64())]), "PERMISSIVE", "must be a string"),
        (pa.schema([("a", pa.string())]), "LAZY", "mode is 'LAZY'"),
        (pa.schema([pa.field("a", pa.string(), nullable=False)]), "PERMISSIVE", "the column a is NOT NULL"),
        (
            pa.schema([("a", pa.list_(pa.struct([pa.field("b", pa.int8(), nullable=False)])))]),
            "PERMISSIVE",
            r"the column a\.b is NOT NULL",
        ),
    ],
)
def test_what_cannot_be_declared_is_refused(schema: Any, mode: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Declared(schema, mode)


def test_every_type_is_read_value_by_value_where_no_parser_knows_it() -> None:
    kinds = {
        "m": pa.map_(pa.string(), pa.int32()),
        "d": pa.decimal128(10, 2),
        "b": pa.binary(),
        "s": pa.struct([("t", pa.timestamp("us", "UTC")), ("n", pa.int8())]),
        "day": pa.date32(),
    }
    good = (
        b'{"m": {"a": 1}, "d": 12345678.905, "b": "AQI=", "s": {"t": "2026-01-02T03:04:05Z", "n": 7}, "day": '
        b'"2026-01-02"}'
    )
    half = (
        b'{"m": {"a": "x"}, "d": 123456789.01, "b": "*", "s": {"t": "2026-01-02T03:04:05Z", "n": 700}, "day": "soon"}'
    )
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    first, second = rows([good, half], pa.schema([*kinds.items(), (CORRUPT, pa.string())]))
    whole = {
        "m": [("a", 1)],
        "d": Decimal("12345678.91"),
        "b": b"\1\2",
        "s": {"t": at, "n": 7},
        "day": at.date(),
        CORRUPT: None,
    }
    assert first == whole
    assert second == {**dict.fromkeys(kinds), "s": {"t": at, "n": None}, CORRUPT: half.decode()}


@pytest.mark.parametrize("width", [2, 45])
def test_fields_that_fit_are_kept_where_another_does_not(width: int) -> None:
    """Few columns by msgspec, many by pyarrow: a bad row is the same."""
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            *[(f"x{n}", pa.float64()) for n in range(width)],
            (CORRUPT, pa.string()),
        ]
    )
    payloads = [b'{"id": %d, "name": "n", "x0": 0.5}' % n for n in range(3000)]
    payloads[1500] = b'{"id": "wrong", "name": {"any": [1]}, "x1": "NaN"}'
    payloads[2999] = b'{"id": 9223372036854775808, "name": 5}'
    found = rows(payloads, schema)
    assert [r["id"] for r in found] == [None if n in (1500, 2999) else n for n in range(3000)]
    assert (found[1500]["name"], str(found[1500]["x1"]), found[1500][CORRUPT]) == (
        '{"any":[1]}',
        "nan",
        payloads[1500].decode(),
    )
    assert (found[2999]["name"], found[2999][CORRUPT]) == ("5", payloads[2999].decode())
    assert sum(r[CORRUPT] is not None for r in found) == 2


@pytest.mark.parametrize("width", [0, 45])
def test_payloads_that_only_together_are_json_are_each_bad(width: int) -> None:
    schema = pa.schema([("a", pa.int64()), *[(f"x{n}", pa.float64()) for n in range(width)], (CORRUPT, pa.string())])
    payloads = [b'{"a":1,"b":[{}', b"{}]}", b'{"a":2},{"a":3}', b'{"a":4}\n{"a":5}', b'{"b":', b'{"a":6}}', b'{"a":7}']
    assert [r["a"] for r in rows(payloads, schema)] == [None] * 6 + [7]


def test_the_raw_columns_are_known_by_their_names() -> None:
    assert (
        {"topic", "value", "coordinate", "batch_index"} <= RAW
        and "region:int" not in RAW
        and all(name.islower() for name in RAW)
    )


def test_decimals_are_read_as_spark_does() -> None:
    schema = pa.schema([("a", pa.decimal128(38, 2)), (CORRUPT, pa.string())])
    whole = "9" * 36
    values = [
        b'{"a": %s.25}' % whole.encode(),
        b'{"a": "12.50"}',
        b'{"a": 0.125}',
        b'{"a": -0.125}',
        b'{"a": "1_0"}',
        b'{"a": 1e40}',
        b'{"a": "1e999999999"}',
    ]
    found = Declared(schema, "PERMISSIVE").batch(values, {}, str).to_pylist()
    assert [row["a"] for row in found] == [
        Decimal(f"{whole}.25"),
        Decimal("12.50"),
        Decimal("0.13"),
        Decimal("-0.13"),
        None,
        None,
        None,
    ]
    assert [row[CORRUPT] is None for row in found] == [True] * 4 + [False] * 3


@pytest.mark.parametrize("width", [0, 45])
def test_a_payload_that_a_parser_of_blocks_would_let_through_or_choke_on_is_one_bad_row(width: int) -> None:
    """Nested too deep in a field that nobody asked for; text that is no UTF-8; a line break within a text."""
    schema = pa.schema([("a", pa.string()), *[(f"x{n}", pa.float64()) for n in range(width)], (CORRUPT, pa.string())])
    odd = [b'{"b":' + b"[" * 3000 + b"]" * 3000 + b"}", b'{"a":"\xff\xfe"}', b'{"a":"x\ny"}']
    found = rows([b'{"a":"1"}', *odd, b'{"a":\n"2"}'], schema)
    assert [r["a"] for r in found] == ["1", None, None, None, "2"]
    assert [r[CORRUPT] is not None for r in found] == [False, True, True, True, False]


ODD = [
    *(
        b'"x"',
        b'""',
        b'"NaN"',
        b'"\\u0000"',
        b'"\\ud800"',
        b'"\\ud83d\\ude00"',
        '"é"'.encode(),
        b'"AQI="',
        b'"12.5"',
        b'"1e999999999999999999999"',
    ),
    *(
        b'"2026-01-02T03:04:05Z"',
        b'"0001-01-01"',
        b'"9999-12-31T23:59:59+14:00"',
        b'"0001-01-01T00:00:00+14:00"',
        b'"2026-02-30"',
        b'"24:00"',
    ),
    *(
        b"1e999999999999999999999",
        b"-1e-999999999999999999999",
        b"1e400",
        b"-0",
        b"1.5",
        b"1e5",
        b"1" * 400,
        b"9223372036854775808",
        b"99999999999999",
    ),
    *(
        b"true",
        b"null",
        b"[]",
        b"[null]",
        b'[[1], "x"]',
        b"{}",
        b'{"a": {"a": 1}}',
        b'{"": 1e999999999999999999999}',
        b"[" * 2000 + b"]" * 2000,
    ),
]
"""Values of JSON that some type or other could choke on."""
TYPES = [
    *(
        pa.int8(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.bool_(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.decimal128(10, 2),
        pa.decimal128(38, 18),
    ),
    *(
        pa.timestamp("us", "UTC"),
        pa.timestamp("us"),
        pa.list_(pa.int32()),
        pa.list_(pa.string()),
        pa.map_(pa.string(), pa.decimal128(5, 1)),
    ),
    *(pa.struct([("a", pa.int64())]), pa.struct([("a", pa.timestamp("us", "UTC"))])),
]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_no_value_of_one_payload_ends_the_others(kind: Any) -> None:
    """Asked for or not, alone or among good ones; what is made of it is a column that everybody can read."""
    declared = Declared(pa.schema([("id", pa.int64()), ("v", kind), (CORRUPT, pa.string())]), "PERMISSIVE")
    payloads = [b'{"id": 1}']
    for odd in ODD:
        payloads += [b'{"id": 1, "v": %s}' % odd, b'{"id": 1, "not asked for": %s}' % odd]
    for some in (payloads, *([payloads[0], each] for each in payloads)):
        made = declared.batch(some, {}, str)
        made.validate(full=True)
        assert made.num_rows == len(some) and made.column("id")[0].as_py() == 1
