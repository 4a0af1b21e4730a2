"""Columns that a user declared: each message's JSON object, field by field, with what does not fit put aside instead of ending the query.

Is: blocks of payloads to Arrow columns, and the modes PERMISSIVE (a bad row is null, its text in `_corrupt_record` where that is declared),
DROPMALFORMED (it is left out), FAILFAST (it ends the task, with its place). Isn't: a schema registry; the declaration alone says what a field is.
How: pyarrow parses a block at once; only where that fails is it halved, until the bad rows are alone. A row is bad as a whole: no field of it is kept.
Options: docs/spark.md, "Declared columns".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from heliograph.model.errors import ConfigError

CORRUPT = "_corrupt_record"
ABOUT = ("_topic", "_key", "_properties", "_publish_time", "_event_time", "_origin_region", "_coordinate", "_ledger", "_entry", "_batch_index")
"""Columns of the message itself, beside those of its payload: the raw source's, with an underscore."""
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
_ZONE = r"(Z|[+-]\d\d:?\d\d)$"


class Declared:
    """schema: of the rows, all declared columns; made once a task. Raises ConfigError for what cannot be declared."""

    def __init__(self, schema: pa.Schema, mode: str) -> None:
        if mode not in MODES:
            raise ConfigError(f"mode is {mode!r}; it may be {', '.join(MODES)}")
        self.schema, self.mode = schema, mode
        self.about = [name for name in schema.names if name in ABOUT]
        self._fields = [field for field in schema if field.name not in ABOUT and field.name != CORRUPT]
        for field in self._fields:
            _check(field.name, field.type, top=True)
        if CORRUPT in schema.names and schema.field(CORRUPT).type != pa.string():
            raise ConfigError(f"{CORRUPT} must be a string")
        if not self._fields:
            raise ConfigError("no column of the payload is declared; without a schema the source gives the payload as it is, in `value`")
        self._times = [field for field in self._fields if pa.types.is_timestamp(field.type)]
        self._read = pa.schema([pa.field(f.name, pa.string() if pa.types.is_timestamp(f.type) else f.type) for f in self._fields])
        self._parse = pa_json.ParseOptions(explicit_schema=self._read, unexpected_field_behavior="ignore")

    def batch(self, payloads: Sequence[bytes], about: dict[str, list[Any]], places: Sequence[str]) -> pa.RecordBatch:
        """payloads: of as many messages as each column of `about`, which has those that are declared. places: to name a bad row by."""
        bad: list[int] = []
        columns = self._columns(payloads, 0, bad)
        if bad and self.mode == "FAILFAST":
            raise ConfigError(f"the message at {places[bad[0]]} is no JSON object of the declared columns: {payloads[bad[0]][:200]!r}")
        arrays: dict[str, Any] = {name: columns.column(name).combine_chunks() for name in self._read.names}
        for name in self.about:
            arrays[name] = pa.array(about[name], self.schema.field(name).type)
        if CORRUPT in self.schema.names:
            texts: list[str | None] = [None] * len(payloads)
            for row in bad:
                texts[row] = payloads[row].decode(errors="replace")
            arrays[CORRUPT] = pa.array(texts, pa.string())
        made = pa.RecordBatch.from_arrays([_flat(arrays[name]) for name in self.schema.names], schema=self.schema)
        if bad and self.mode == "DROPMALFORMED":
            left = set(bad)
            made = made.filter(pa.array([row not in left for row in range(len(payloads))]))
        return made

    def _columns(self, payloads: Sequence[bytes], first: int, bad: list[int]) -> pa.Table:
        """first: the number of the first of them, for `bad`."""
        try:
            return self._parsed(payloads)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
            if len(payloads) == 1:
                bad.append(first)
                return pa.table({field.name: pa.nulls(1, field.type) for field in self._fields})
        half = len(payloads) // 2
        return pa.concat_tables([self._columns(payloads[:half], first, bad), self._columns(payloads[half:], first + half, bad)])

    def _parsed(self, payloads: Sequence[bytes]) -> pa.Table:
        """Raises ArrowInvalid or ValueError where any of them does not fit."""
        # a line break is white space outside of a string, and not allowed inside one
        lines = b"\n".join(payload.replace(b"\n", b" ").replace(b"\r", b" ") for payload in payloads)
        if any(payload.lstrip()[:1] != b"{" for payload in payloads):
            raise ValueError("no object")
        whole = pa_json.ReadOptions(use_threads=False, block_size=len(lines) + 16)
        table = pa_json.read_json(pa.BufferReader(lines), read_options=whole, parse_options=self._parse)
        if table.num_rows != len(payloads):
            raise ValueError("more than one object in a payload")
        for field in self._times:
            text = table.column(field.name)
            zoned = pc.if_else(pc.match_substring_regex(text, _ZONE), text, pc.binary_join_element_wise(text, "Z", ""))
            table = table.set_column(table.schema.get_field_index(field.name), field, zoned.cast(field.type))
        return table


def _flat(array: Any) -> Any:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _check(name: str, kind: pa.DataType, *, top: bool = False) -> None:
    if pa.types.is_struct(kind):
        for field in kind:
            _check(f"{name}.{field.name}", field.type)
    elif pa.types.is_list(kind):
        _check(f"{name}[]", kind.value_type)
    elif pa.types.is_timestamp(kind) and not top:
        raise ConfigError(f"{name} is a timestamp inside of another column: declare it as string, and cast it")
    elif pa.types.is_map(kind) or pa.types.is_binary(kind):
        raise ConfigError(f"{name} is {kind}: JSON has no such value; declare a struct, or string")
