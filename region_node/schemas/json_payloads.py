"""Payloads that are given as JSON, written as clients with a schema write them: numbers, true and false, texts; AVRO as
the JSON of a record.

Is: an encoder by a schema's type, and the bound of the work that AVRO's takes. Isn't: whether a topic takes the schema.
Invariants: what does not fit its schema is refused before any of it is written.
"""

from __future__ import annotations

import io
import json
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import avro.errors
import avro.io
from avro.schema import ArraySchema, EnumSchema, MapSchema, RecordSchema, UnionSchema
from avro.schema import Schema as AvroSchema

from heliograph.model.errors import MalformedRequest, NotAllowed
from region_node.schemas.schema_checks import AT_ONCE_BYTES, NESTING_AT_ONCE, is_parsed_at_once
from region_node.schemas.schema_definition import InvalidSchema, parse_avro

_INTEGERS = {"INT8": ">b", "INT16": ">h", "INT32": ">i", "INT64": ">q"}
_FLOATS = {"FLOAT": ">f", "DOUBLE": ">d"}
Encode = Callable[[Any], bytes]


class PayloadSteps:
    """How often values of a request are held against parts of its schemas: items times branches, however small both
    are.
    """

    def __init__(self, message_max: int, request_max: int) -> None:
        self._of_message, self._message_max, self._left = 0, message_max, request_max

    def spend(self, steps: int) -> None:
        """Raises NotAllowed where there are too many of the message, or of the request."""
        self._of_message += steps
        if self._of_message > min(self._message_max, self._left):
            raise NotAllowed(
                "the AVRO payloads have too many values for a schema of so many branches and fields: publish fewer in "
                "a request, or with a client"
            )

    def next_message(self) -> int:
        """How many steps the last one took."""
        spent, self._of_message = self._of_message, 0
        self._left -= spent
        return spent


_misfits = cast("Callable[..., avro.errors.AvroTypeException]", avro.errors.AvroTypeException)  # it has no types


class _BoundedWriter(avro.io.DatumWriter):
    """Avro's writer, whose steps are counted."""

    def __init__(self, schema: AvroSchema, steps: PayloadSteps) -> None:
        super().__init__(schema)
        self._schema, self._steps = schema, steps
        self._widths: dict[int, int] = {}

    def write(self, datum: object, encoder: avro.io.BinaryEncoder) -> None:
        if (wrong := self._misfit(self._schema, datum)) is not None:
            raise _misfits(*wrong)
        self.write_data(self._schema, datum, encoder)

    def write_union(self, writers_schema: UnionSchema, datum: object, encoder: avro.io.BinaryEncoder) -> None:
        """The last branch that fits is taken, as by Avro's own."""
        fits = [place for place, each in enumerate(writers_schema.schemas) if self._misfit(each, datum) is None]
        if not fits:
            raise _misfits(writers_schema, datum)
        encoder.write_long(fits[-1])
        self.write_data(writers_schema.schemas[fits[-1]], datum, encoder)

    def _misfit(self, schema: AvroSchema, datum: object) -> tuple[AvroSchema, object] | None:
        """The first part that does not fit, and its schema; None: all of it fits."""
        nodes: deque[tuple[AvroSchema, Any]] = deque(((schema, datum),))
        while nodes:
            each, value = nodes.popleft()
            self._steps.spend(self._width(each))
            found = each.validate(value)
            if found is None:
                return each, value
            if isinstance(found, RecordSchema):
                nodes.extend((field.type, value.get(field.name)) for field in found.fields)
            elif isinstance(found, ArraySchema):
                nodes.extend((found.items, item) for item in value)
            elif isinstance(found, MapSchema):
                nodes.extend((found.values, item) for item in value.values())
        return None

    def _width(self, schema: AvroSchema) -> int:
        """How many steps it takes to hold one value against it alone."""
        if (width := self._widths.get(id(schema))) is None:
            width = 1
            if isinstance(schema, UnionSchema):
                width += sum(self._width(each) for each in schema.schemas)
            elif isinstance(schema, RecordSchema):
                width += len(schema.fields)
            elif isinstance(schema, EnumSchema):
                width += len(schema.symbols) // 16
            self._widths[id(schema)] = width
        return width


def as_text(value: Any) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def _packed(form: str, kind: type) -> Encode:
    def encode(value: Any) -> bytes:
        try:
            return struct.pack(form, kind(value))
        except (ValueError, TypeError, OverflowError, struct.error) as error:
            raise MalformedRequest(f"{value!r} is not a value of that schema: {error}") from error

    return encode


def _flag(value: Any) -> bytes:
    if str(value).lower() not in ("true", "false"):
        raise MalformedRequest(f"{value!r} is neither true nor false")
    return b"\x01" if str(value).lower() == "true" else b"\x00"


def _json(value: Any) -> bytes:
    if isinstance(value, str):
        try:
            json.loads(value)
        except (ValueError, RecursionError) as error:
            raise MalformedRequest(f"a payload of a JSON schema is JSON: {error}") from error
        return value.encode()
    return json.dumps(value).encode()


def avro_encoder(definition: str, steps: PayloadSteps) -> Encode:
    data = definition.encode()
    if not is_parsed_at_once(data):
        raise NotAllowed(
            f"an AVRO schema of {len(data):,} bytes; over HTTP payloads are written by {AT_ONCE_BYTES:,} at most, "
            f"nested {NESTING_AT_ONCE} deep: publish with a client"
        )
    try:
        schema = parse_avro(data)
    except InvalidSchema as error:
        raise MalformedRequest(f"valueSchema is no Avro schema: {error}") from error
    writer = _BoundedWriter(schema, steps)

    def encode(value: Any) -> bytes:
        out = io.BytesIO()
        try:
            writer.write(json.loads(value) if isinstance(value, str) else value, avro.io.BinaryEncoder(out))
        except (avro.errors.AvroException, ValueError, TypeError, RecursionError) as error:
            raise MalformedRequest(f"a payload does not fit the schema: {error}") from error
        return out.getvalue()

    return encode


ENCODERS: dict[str, Encode] = {
    "STRING": as_text,
    "JSON": _json,
    "AVRO": as_text,
    "BOOLEAN": _flag,
    **{name: _packed(form, int) for name, form in _INTEGERS.items()},
    **{name: _packed(form, float) for name, form in _FLOATS.items()},
}
