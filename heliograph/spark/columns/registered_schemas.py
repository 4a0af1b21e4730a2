"""A registered schema: which Spark columns it has, and how one payload becomes a dict of them.

Is: pure: AVRO, JSON, PROTOBUF_NATIVE, the primitive types of Pulsar's registry, and KEY_VALUE of any two of these.
Isn't: the registry, or Arrow columns (`registered_columns`).
Evolution: an Avro payload is read by the schema that it was written with, into the newest one (defaults, aliases,
promotions), where Avro allows that; otherwise, and for Protobuf and JSON, fields go by name.
Source: Avro 1.12, "Schema Resolution"; Pulsar's SchemaType; docs/spark.md, "Registered schemas".
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import types as t

from heliograph.model.errors import ConfigError

Decode = Callable[[bytes], Mapping[str, Any]]
"""A payload to its fields. Raises whatever its library does where it does not fit."""
_DAY, _EPOCH = date(1970, 1, 1), datetime(1970, 1, 1)


def _millis(data: bytes) -> datetime:
    return (_EPOCH + timedelta(milliseconds=struct.unpack(">q", data)[0])).replace(tzinfo=UTC)


def _instant(data: bytes) -> datetime:
    seconds, nanos = struct.unpack(">qi", data)
    return (_EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)).replace(tzinfo=UTC)


def _local(data: bytes) -> datetime:
    days, nanos = struct.unpack(">qq", data)
    return _EPOCH + timedelta(days=days, microseconds=nanos // 1000)


_PRIMITIVES: dict[str, tuple[t.DataType, Callable[[bytes], Any]]] = {
    "STRING": (t.StringType(), lambda data: data.decode()),
    "BOOLEAN": (t.BooleanType(), lambda data: bool(data[0])),
    "INT8": (t.ByteType(), lambda data: struct.unpack(">b", data)[0]),
    "INT16": (t.ShortType(), lambda data: struct.unpack(">h", data)[0]),
    "INT32": (t.IntegerType(), lambda data: struct.unpack(">i", data)[0]),
    "INT64": (t.LongType(), lambda data: struct.unpack(">q", data)[0]),
    "FLOAT": (t.FloatType(), lambda data: struct.unpack(">f", data)[0]),
    "DOUBLE": (t.DoubleType(), lambda data: struct.unpack(">d", data)[0]),
    **dict.fromkeys(("DATE", "TIMESTAMP"), (t.TimestampType(), _millis)),
    "INSTANT": (t.TimestampType(), _instant),
    "LOCAL_DATE": (t.DateType(), lambda data: _DAY + timedelta(days=struct.unpack(">q", data)[0])),
    "LOCAL_DATE_TIME": (t.TimestampNTZType(), _local),
    **dict.fromkeys(("NONE", "BYTES"), (t.BinaryType(), bytes)),
}
_AVRO: dict[str, t.DataType] = {
    "string": t.StringType(),
    "bytes": t.BinaryType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "boolean": t.BooleanType(),
    "null": t.StringType(),
}
_LOGICAL: dict[str, t.DataType] = {
    "date": t.DateType(),
    "timestamp-millis": t.TimestampType(),
    "timestamp-micros": t.TimestampType(),
    "local-timestamp-millis": t.TimestampNTZType(),
    "local-timestamp-micros": t.TimestampNTZType(),
    "uuid": t.StringType(),
}
_FIELD = descriptor_pb2.FieldDescriptorProto
_INT, _LONG = t.IntegerType(), t.LongType()
_PROTOBUF: dict[int, t.DataType] = {
    _FIELD.TYPE_DOUBLE: t.DoubleType(),
    _FIELD.TYPE_FLOAT: t.FloatType(),
    _FIELD.TYPE_BOOL: t.BooleanType(),
    _FIELD.TYPE_STRING: t.StringType(),
    _FIELD.TYPE_BYTES: t.BinaryType(),
    _FIELD.TYPE_ENUM: t.StringType(),
    **dict.fromkeys((_FIELD.TYPE_INT32, _FIELD.TYPE_SINT32, _FIELD.TYPE_SFIXED32), _INT),
    **dict.fromkeys(
        (_FIELD.TYPE_INT64, _FIELD.TYPE_SINT64, _FIELD.TYPE_SFIXED64, _FIELD.TYPE_UINT32, _FIELD.TYPE_FIXED32), _LONG
    ),
    **dict.fromkeys((_FIELD.TYPE_UINT64, _FIELD.TYPE_FIXED64), t.DecimalType(20, 0)),
}


@dataclass(frozen=True, slots=True)
class Pairs:
    """How payloads of a KEY_VALUE schema are read: each half to its value; None: of JSON. separated: the key is the
    message's, not in the payload.
    """

    key: Callable[[bytes], Any] | None
    value: Callable[[bytes], Any] | None
    separated: bool

    def cut(self, payload: bytes | None, key: bytes | None) -> dict[str, bytes | None]:
        """Cuts a payload into the bytes of its key and its value; None: that half is null. Raises ValueError where it
        is too short.
        """
        if self.separated or payload is None:
            return {"key": key if self.separated else None, "value": payload}
        found, at = dict[str, bytes | None](), 0
        for half in ("key", "value"):
            size = int.from_bytes(payload[at : at + 4], "big", signed=True)  # -1: null
            stop = at + 4 + max(size, 0)
            if stop > len(payload):
                raise ValueError("it ends inside its key or value")
            found[half], at = None if size < 0 else payload[at + 4 : stop], stop
        return found


def columns_of(schema: Mapping[str, Any]) -> t.StructType:
    """Returns the columns of a row of the registry (`type`, `data`, `properties`). Raises ConfigError for what has no
    columns.
    """
    kind = schema["type"]
    if kind == "KEY_VALUE":
        return t.StructType([t.StructField(name, _type(half)) for name, half in _halves(schema).items()])
    found = _type(schema)
    if kind in _PRIMITIVES:
        return t.StructType([t.StructField("value", found)])
    if not isinstance(found, t.StructType):
        raise ConfigError(f"the registered {kind} schema is no record: {schema['data'][:200]}")
    return found


def _type(schema: Mapping[str, Any]) -> t.DataType:
    kind = schema["type"]
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind][0]
    try:
        if kind in ("AVRO", "JSON"):
            return _avro(json.loads(schema["data"]), {})
        if kind == "PROTOBUF_NATIVE":
            return _protobuf(_message(schema["data"]).DESCRIPTOR, ())
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"the registered {kind} schema cannot be read: {error}") from error
    raise ConfigError(
        f"a registered schema of type {kind} has no columns here: read the payload as it is (columns=raw), or declare "
        "JSON columns"
    )


def decoder_of(written: Mapping[str, Any], newest: Mapping[str, Any]) -> Decode | Pairs | None:
    """How payloads of the schema `written` are read; None: as JSON objects. Raises ConfigError."""
    kind = written["type"]
    if kind == "KEY_VALUE":
        halves, later = _halves(written), _halves(newest) if newest["type"] == kind else {}
        key, value = (_read_of(half, later.get(name, half)) for name, half in halves.items())
        return Pairs(key, value, written.get("properties", {}).get("kv.encoding.type") == "SEPARATED")
    read = _read_of(written, newest)
    return read if read is None or kind not in _PRIMITIVES else lambda data: {"value": read(data)}


def _read_of(written: Mapping[str, Any], newest: Mapping[str, Any]) -> Callable[[bytes], Any] | None:
    kind = written["type"]
    if kind == "JSON":
        return None
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind][1]
    if kind == "AVRO":
        return _avro_decoder(
            json.loads(written["data"]), json.loads(newest["data"]) if newest["type"] == "AVRO" else None
        )
    if kind == "PROTOBUF_NATIVE":
        parse = _message(written["data"]).FromString
        return lambda data: _fields(parse(data))
    raise ConfigError(f"payloads of a registered schema of type {kind} cannot be read here")


def _halves(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`key` and `value` of a KEY_VALUE, as rows of the registry. Raises ConfigError."""
    try:
        given, kinds = json.loads(schema["data"]), schema["properties"]
        return {
            half: {"type": kinds.get(f"{half}.schema.type", "NONE"), "data": json.dumps(given[half])}
            for half in ("key", "value")
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"the registered KEY_VALUE schema cannot be read: {error!r}") from error


# -- Avro -------------------------------------------------------------------------------------------------------------


def _avro(schema: Any, names: dict[str, Any]) -> t.DataType:
    """names: records, enums, and fixed that were defined before, which a later one may name."""
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) > 1:
            raise ConfigError(
                f"a union of {len(kinds)} types has no column; declare the other columns, and leave this one out: "
                f"{schema}"
            )
        return _avro(kinds[0] if kinds else "null", names)
    if isinstance(schema, str):
        if schema in _AVRO:
            return _AVRO[schema]
        if names[schema] == "open":
            raise ConfigError(f"{schema} holds itself: it has no columns")
        return _avro(dict(names[schema]), {name: each for name, each in names.items() if name != schema})
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _avro(kind, names)
    if "name" in schema and kind in ("record", "enum", "fixed"):
        names[schema["name"]] = "open"
    found: t.DataType
    logical = schema.get("logicalType")
    if logical == "decimal":
        found = t.DecimalType(schema["precision"], schema.get("scale", 0))
    elif logical in _LOGICAL:
        found = _LOGICAL[logical]
    elif kind == "record":
        found = t.StructType([t.StructField(field["name"], _avro(field["type"], names)) for field in schema["fields"]])
    elif kind == "array":
        found = t.ArrayType(_avro(schema["items"], names))
    elif kind == "map":
        found = t.MapType(t.StringType(), _avro(schema["values"], names))
    else:
        found = t.StringType() if kind == "enum" else t.BinaryType() if kind == "fixed" else _avro(kind, names)
    if "name" in schema and kind in ("record", "enum", "fixed"):
        names[schema["name"]] = schema
    return found


def _avro_decoder(written: Any, newest: Any) -> Callable[[bytes], Any]:
    try:
        from fastavro import parse_schema, schemaless_reader
        from fastavro.read import SchemaResolutionError
    except ImportError as error:
        raise ConfigError(
            "registered Avro schemas want the package fastavro, on the driver and on every worker: pip install fastavro"
        ) from error
    writer = parse_schema(written)
    reader = parse_schema(newest) if newest is not None and newest != written else None

    def decode(data: bytes) -> Any:
        if reader is not None:
            try:
                return schemaless_reader(io.BytesIO(data), writer, reader)
            except SchemaResolutionError:
                pass  # Avro does not allow it, of this payload, or of any: what is there goes by name
        return schemaless_reader(io.BytesIO(data), writer, None)

    return decode


# -- Protobuf ---------------------------------------------------------------------------------------------------------


def _message(data: str) -> Any:
    """The message class of a PROTOBUF_NATIVE definition."""
    given = json.loads(data)
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(given["fileDescriptorSet"]))
    pool, left = descriptor_pool.DescriptorPool(), list(files.file)
    while left:  # a file goes in behind those that it imports
        ready = [file for file in left if not {other.name for other in left} & set(file.dependency)]
        if not ready:
            raise ConfigError("the files of a registered Protobuf schema import one another")
        for file in ready:
            pool.Add(file)
            left.remove(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(given["rootMessageTypeName"]))


def _protobuf(message: Any, above: tuple[str, ...]) -> t.StructType:
    if message.full_name in above:
        raise ConfigError(f"{message.full_name} holds itself: it has no columns")
    return t.StructType(
        [t.StructField(field.name, _protobuf_type(field, (*above, message.full_name))) for field in message.fields]
    )


def _protobuf_type(field: Any, above: tuple[str, ...]) -> t.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return t.MapType(_protobuf_type(entry["key"], above), _protobuf_type(entry["value"], above))
    one = _protobuf(field.message_type, above) if field.message_type is not None else _PROTOBUF[field.type]
    return t.ArrayType(one) if field.is_repeated else one


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _fields(message: Any) -> dict[str, Any]:
    """Fields that were not set are null where the schema can tell, and their default where it cannot."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            nested = field.message_type.fields_by_name["value"]
            found[field.name] = [(key, _value(nested, item)) for key, item in value.items()]
        elif field.is_repeated:
            found[field.name] = [_value(field, item) for item in value]
        else:
            found[field.name] = _value(field, value) if not field.has_presence or message.HasField(field.name) else None
    return found


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _fields(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return named.name if named is not None else str(value)
    return value
