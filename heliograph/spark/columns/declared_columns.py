"""Columns that a user declared: each message's JSON object, field by field, with what does not fit put aside instead of
ending the query.

Is: blocks of payloads to Arrow columns, and the modes PERMISSIVE (a field that does not fit is null, the payload's text
in `_corrupt_record` where that is declared), DROPMALFORMED (the row is left out), FAILFAST (it ends the task, with its
place). Isn't: a schema registry (`registered_columns`).
How: up to forty flat columns by msgspec, a payload at a time; more, or lists and structs, by pyarrow, a block at a
time. What either refuses is halved, and the last few hundred rows read value by value (`json_coercion`), as is what
neither knows (maps, decimals, binary, times within structs): at a third of the speed.
Invariants: a payload is a row, whatever is in it; a bad one changes no other. Options: docs/spark.md, "Declared
columns".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from heliograph.model.errors import ConfigError
from heliograph.spark.columns.entry_columns import MessageRows
from heliograph.spark.columns.json_coercion import Unfit, reader_of

CORRUPT = "_corrupt_record"
ABOUT = (
    *("_topic", "_partition", "_key", "_properties", "_publish_time", "_event_time", "_origin_region", "_coordinate"),
    *("_ledger", "_entry", "_batch_index", "_schema_version", "_stored_time", "_origin_time"),
)
"""Columns of the message itself, beside those of its payload: the raw source's, with an underscore."""
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
_ZONE = r"(Z|[+-]\d\d:?\d\d)$"
_FLAT_MAX = 40
_SLOW_ROWS = 512
_NATIVE: dict[pa.DataType, Any] = {
    **{
        kind: Annotated[int, msgspec.Meta(ge=-(1 << bits), le=(1 << bits) - 1)]
        for kind, bits in ((pa.int8(), 7), (pa.int16(), 15), (pa.int32(), 31))
    },
    pa.int64(): Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
    pa.float32(): float,
    pa.float64(): float,
    pa.bool_(): bool,
    pa.string(): str,
}
_Column = list[Any]
_REFUSED = (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, ArithmeticError, RecursionError)
"""What a parser of blocks raises; msgspec's errors are ValueErrors, but for what is nested too deep."""
_UNREAD = (ValueError, ArithmeticError, RecursionError)
"""What a single value may raise: a number with an exponent of twenty digits is no decimal, say."""
_CHECKED = msgspec.json.Decoder(msgspec.Raw).decode


class Declared:
    """schema: of the rows, all declared columns; made once a task. Raises ConfigError for what cannot be declared."""

    def __init__(self, schema: pa.Schema, mode: str) -> None:
        if mode not in MODES:
            raise ConfigError(f"mode is {mode!r}; it may be {', '.join(MODES)}")
        check_nullable(schema)
        self.schema, self.mode = schema, mode
        self.about = [name for name in schema.names if name in ABOUT]
        self.fields = [field for field in schema if field.name not in ABOUT and field.name != CORRUPT]
        if CORRUPT in schema.names and schema.field(CORRUPT).type != pa.string():
            raise ConfigError(f"{CORRUPT} must be a string")
        if not self.fields:
            raise ConfigError(
                "no column of the payload is declared; without a schema the source gives the payload as it is, in "
                "`value`"
            )
        try:
            self._reads = [reader_of(field.type) for field in self.fields]
        except TypeError as error:
            raise ConfigError(f"a column is {error}, which JSON has no value for; a map's keys are strings") from error
        self._times = [
            field for field in self.fields if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type)
        ]
        self._read = [pa.field(f.name, pa.string() if f in self._times else f.type) for f in self.fields]
        self._gets = [attrgetter(f"f{number}") for number in range(len(self._read))]
        self._block = self._block_parser()
        self._any = msgspec.json.Decoder(float_hook=Decimal if any(_has_decimal(f.type) for f in self.fields) else None)

    def of(self, rows: MessageRows) -> pa.RecordBatch:
        """The batch of what was gathered."""
        return self.batch(rows.values, self.about_of(rows), rows.place, rows.bad)

    def about_of(self, rows: MessageRows) -> dict[str, pa.Array]:
        return {name: rows.column(name[1:], self.schema.field(name).type) for name in self.about}

    def batch(
        self,
        values: Sequence[bytes | None],
        about: Mapping[str, pa.Array],
        place: Callable[[int], str],
        bad: Sequence[int] = (),
    ) -> pa.RecordBatch:
        """values: payloads; None: a message without one, all null. about: columns of the messages, those that are
        declared. place: to name a bad row by.

        bad: rows that are so already, whatever is in them.
        """
        wrong: dict[int, None] = dict.fromkeys(bad)
        columns = self.columns([b"{}" if v is None else v for v in values], 0, wrong) if values else self._empty()
        return self.assembled(columns, values, about, place, wrong)

    def assembled(
        self,
        columns: Sequence[pa.Array],
        values: Sequence[bytes | None],
        about: Mapping[str, pa.Array],
        place: Callable[[int], str],
        wrong: dict[int, None],
    ) -> pa.RecordBatch:
        """The batch of columns of `fields`, in their order, with what the mode asks for its wrong rows."""
        if wrong and self.mode == "FAILFAST":
            row = min(wrong)
            raise ConfigError(
                f"the message at {place(row)} does not fit the declared columns: {(values[row] or b'')[:200]!r}"
            )
        arrays: dict[str, Any] = {field.name: column for field, column in zip(self.fields, columns, strict=True)}
        arrays |= about
        if CORRUPT in self.schema.names:
            texts: list[str | None] = [None] * len(values)
            for row in wrong:
                texts[row] = (values[row] or b"").decode(errors="replace")
            arrays[CORRUPT] = pa.array(texts, pa.string())
        made = pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)
        if wrong and self.mode == "DROPMALFORMED":
            made = made.filter(pa.array([row not in wrong for row in range(len(values))]))
        return made

    def _empty(self) -> list[pa.Array]:
        return [pa.array([], field.type) for field in self.fields]

    def columns(self, payloads: list[bytes], first: int, wrong: dict[int, None]) -> list[pa.Array]:
        """first: the number of the first of them, for `wrong`."""
        if self._block is not None:
            try:
                return [
                    self._timed(field, column) for field, column in zip(self.fields, self._block(payloads), strict=True)
                ]
            except _REFUSED:
                pass
        if self._block is None or len(payloads) <= _SLOW_ROWS:
            return self._slowly(payloads, first, wrong)
        half = len(payloads) // 2
        pieces = self.columns(payloads[:half], first, wrong), self.columns(payloads[half:], first + half, wrong)
        return [pa.concat_arrays(parts) for parts in zip(*pieces, strict=True)]

    def _timed(self, field: pa.Field, column: pa.Array) -> pa.Array:
        """Raises ArrowInvalid where a text is no time."""
        if field not in self._times:
            return column
        if pa.types.is_date(field.type):
            return pc.utf8_slice_codeunits(column, 0, 10).cast(field.type)
        if pc.all(pc.ends_with(column, "Z")).as_py():  # as most clocks write them: an eighth of the time
            return column.cast(pa.timestamp("us", "UTC")).cast(field.type)
        zoned = pc.if_else(
            pc.match_substring_regex(column, _ZONE), column, pc.binary_join_element_wise(column, "Z", "")
        )
        return zoned.cast(pa.timestamp("us", "UTC")).cast(field.type)

    def _slowly(self, payloads: list[bytes], first: int, wrong: dict[int, None]) -> list[pa.Array]:
        """Value by value: each field that does not fit is null, and the row is wrong."""
        columns: list[_Column] = [[] for _ in self.fields]
        names = [field.name for field in self.fields]
        for row, payload in enumerate(payloads, first):
            try:
                given = self._any.decode(payload)
            except _UNREAD:
                given = None
            if type(given) is not dict:
                given = {}
                wrong[row] = None
            for name, read, column in zip(names, self._reads, columns, strict=True):
                value = given.get(name)
                try:
                    column.append(None if value is None else read(value))
                except Unfit as error:
                    column.append(error.kept)
                    wrong[row] = None
                except _UNREAD:
                    column.append(None)
                    wrong[row] = None
        return [pa.array(column, field.type) for column, field in zip(columns, self.fields, strict=True)]

    # -- parsers of blocks: payloads to columns as of `_read`; ValueError or ArrowInvalid where any payload does not fit

    def _block_parser(self) -> Callable[[list[bytes]], list[pa.Array]] | None:
        if len(self.fields) <= _FLAT_MAX and all(field.type in _NATIVE for field in self._read):
            names = {f"f{number}": field.name for number, field in enumerate(self._read)}
            fields = [(name, _NATIVE[field.type] | None, None) for name, field in zip(names, self._read, strict=True)]
            row = msgspec.defstruct("Row", fields, rename=names, gc=False)
            decode = msgspec.json.Decoder(row).decode
            return lambda payloads: self._by_msgspec(decode, payloads)
        if all(_in_blocks(field.type) for field in self._read):
            parse = pa_json.ParseOptions(explicit_schema=pa.schema(self._read), unexpected_field_behavior="ignore")
            return lambda payloads: self._by_pyarrow(parse, payloads)
        return None

    def _by_msgspec(self, decode: Callable[[bytes], Any], payloads: list[bytes]) -> list[pa.Array]:
        rows = list(map(decode, payloads))  # both loops are C's: a name or a frame a value doubled the time of a row
        return [pa.array(list(map(get, rows)), field.type) for get, field in zip(self._gets, self._read, strict=True)]

    def _by_pyarrow(self, parse: Any, payloads: list[bytes]) -> list[pa.Array]:
        count, lines = len(payloads), b"\n".join(payloads)
        if not _one_a_line(lines, count):
            for payload in payloads:
                _CHECKED(payload)  # a line break is white space outside of a string, and not allowed inside one
            lines = b"\n".join([payload.replace(b"\n", b" ").replace(b"\r", b" ").strip() for payload in payloads])
            if not _one_a_line(lines, count):
                raise ValueError("a payload that is no object")
        lines.decode()  # which the parser does not look at, and readers of its columns do
        table = pa_json.read_json(
            pa.BufferReader(lines),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(lines) + 16),
            parse_options=parse,
        )
        if table.num_rows != count:
            raise ValueError("more than one object in a payload")
        return [_flat(table.column(field.name)) for field in self._read]


def check_nullable(fields: Iterable[pa.Field], above: str = "") -> None:
    """Raises ConfigError: a single message may lack any column, and Spark, which would believe that it does not, ends
    the query.
    """
    for field in fields:
        name = above + field.name
        if not field.nullable:
            raise ConfigError(
                f"the column {name} is NOT NULL, which no message promises: leave that out, and say `where {name} is "
                "not null` behind it"
            )
        kind = field.type.value_type if pa.types.is_list(field.type) else field.type
        if pa.types.is_struct(kind):
            check_nullable(kind, f"{name}.")


def _one_a_line(lines: bytes, count: int) -> bool:
    """Whether each of `count` lines begins with { and ends with }. Then no value goes over a line's end: between } and
    { there is none in JSON but the end.
    """
    return lines[:1] == b"{" and lines[-1:] == b"}" and lines.count(b"}\n{") == count - 1 == lines.count(b"\n")


def _flat(array: Any) -> Any:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _in_blocks(kind: pa.DataType) -> bool:
    """Whether pyarrow reads such a column from JSON as Spark does."""
    if pa.types.is_struct(kind):
        return all(_in_blocks(field.type) for field in kind)
    return _in_blocks(kind.value_type) if pa.types.is_list(kind) else kind in _NATIVE


def _has_decimal(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_decimal(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _has_decimal(kind.value_type)
    return (pa.types.is_map(kind) and _has_decimal(kind.item_type)) or pa.types.is_decimal(kind)
