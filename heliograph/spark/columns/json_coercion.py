"""Values of JSON, one by one, to what an Arrow type wants: the slow way, for rows that a parser of blocks refused, and
for types that it does not know.

Is: pure. Isn't: parsing of text, or columns (`declared_columns`).
How a value is read: as Spark's own JSON reader does. Text columns take any value as its text; numbers are never read
from text, but for decimals, NaN, and infinities; a timestamp is text as of ISO 8601 (in UTC where it has no zone) or
seconds since 1970; binary is base64. A field that does not fit is null, and said so.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT = msgspec.json.Encoder(decimal_format="number").encode
_SPECIAL = {"NaN": "nan", "Infinity": "inf", "+Infinity": "inf", "INF": "inf", "-Infinity": "-inf", "-INF": "-inf"}
_INTEGERS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
_DECIMALS = Context(prec=76, rounding=ROUND_HALF_UP)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)
Read = Callable[[Any], Any]
"""A value of JSON that is not null to one that `pyarrow.array` takes. Raises Unfit."""


class Unfit(ValueError):
    """A value that the declared type cannot hold. `kept`: what is left of it, where it is a struct."""

    def __init__(self, kept: Any = None) -> None:
        super().__init__("unfit")
        self.kept = kept


def reader_of(kind: pa.DataType) -> Read:
    """How values of a type are read. Raises TypeError for a type that JSON has no value for."""
    if kind in _INTEGERS:
        limit = 1 << _INTEGERS[kind]
        return lambda value: value if type(value) is int and -limit <= value < limit else _unfit()
    if pa.types.is_floating(kind):
        return _float
    if pa.types.is_boolean(kind):
        return lambda value: value if type(value) is bool else _unfit()
    if pa.types.is_string(kind):
        return lambda value: value if type(value) is str else _TEXT(value).decode()
    if pa.types.is_timestamp(kind):
        zoned = kind.tz is not None
        return lambda value: _time(value, zoned)
    if pa.types.is_date(kind):
        return _date
    if pa.types.is_decimal(kind):
        return lambda value: _decimal(value, kind.precision, kind.scale)
    if pa.types.is_binary(kind):
        return _binary
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_list(kind):
        return _list(reader_of(kind.value_type))
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return _map(reader_of(kind.item_type))
    raise TypeError(str(kind))


def _unfit() -> Any:
    raise Unfit


def _float(value: Any) -> float:
    if type(value) in (int, float, Decimal):
        return float(value)
    return float(_SPECIAL[value]) if type(value) is str and value in _SPECIAL else _unfit()


def _time(value: Any, zoned: bool) -> datetime:
    try:
        if type(value) is str:
            at = datetime.fromisoformat(value)
            at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        elif type(value) is int:
            at = _EPOCH + timedelta(seconds=value)
        else:
            raise Unfit
    except (ValueError, OverflowError) as error:
        raise Unfit from error
    return at if zoned else at.replace(tzinfo=None)


def _date(value: Any) -> date:
    try:
        return date.fromisoformat(value[:10]) if type(value) is str else _unfit()
    except ValueError as error:
        raise Unfit from error


def _decimal(value: Any, precision: int, scale: int) -> Decimal:
    if type(value) not in (int, float, Decimal) and not (type(value) is str and _NUMBER.fullmatch(value)):
        raise Unfit
    try:
        found = Decimal(str(value)).quantize(Decimal(1).scaleb(-scale), context=_DECIMALS)
    except InvalidOperation as error:
        raise Unfit from error
    return found if len(found.as_tuple().digits) <= precision else _unfit()


def _binary(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True) if type(value) is str else _unfit()
    except ValueError as error:
        raise Unfit from error


def _struct(kind: pa.StructType) -> Read:
    fields = [(field.name, reader_of(field.type)) for field in kind]

    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Unfit
        found, fits = {}, True
        for name, read_field in fields:
            item = value.get(name)
            try:
                found[name] = None if item is None else read_field(item)
            except Unfit as error:
                found[name], fits = error.kept, False
        if not fits:
            raise Unfit(found)
        return found

    return read


def _list(read_item: Read) -> Read:
    return lambda value: (
        [None if item is None else read_item(item) for item in value] if type(value) is list else _unfit()
    )


def _map(read_item: Read) -> Read:
    return lambda value: (
        [(key, None if item is None else read_item(item)) for key, item in value.items()]
        if type(value) is dict
        else _unfit()
    )
