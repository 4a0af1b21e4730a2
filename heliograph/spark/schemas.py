"""A registered schema: which Spark columns it has, and how one payload becomes a dict of them.

Is: pure: AVRO, JSON, PROTOBUF_NATIVE, and the primitive types of Pulsar's registry. Isn't: the registry, or Arrow columns (`registered`).
Evolution: an Avro payload is read by the schema that it was written with, into the newest one (defaults, aliases, promotions), where Avro allows that;
otherwise, and for Protobuf and JSON, fields go by name.
Source: Avro 1.12, "Schema Resolution"; Pulsar's SchemaType; docs/spark.md, "Registered schemas".
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import types as t

from heliograph.model.errors import ConfigError

Decode = Callable[[bytes], Mapping[str, Any]]
"""A payload to its fields. Raises whatever its library does where it does not fit."""
_PRIMITIVES: dict[str, tuple[t.DataType, Callable[[bytes], Any]]] = {
    "STRING": (t.StringType(), lambda data: data.decode()),
    "BOOLEAN": (t.BooleanType(), lambda data: bool(data[0])),
    "INT8": (t.ByteType(), lambda data: struct.unpack(">b", data)[0]),
    "INT16": (t.ShortType(), lambda data: struct.unpack(">h", data)[0]),
    "INT32": (t.IntegerType(), lambda data: struct.unpack(">i", data)[0]),
    "INT64": (t.LongType(), lambda data: struct.unpack(">q", data)[0]),
    "FLOAT": (t.FloatType(), lambda data: struct.unpack(">f", data)[0]),
    "DOUBLE": (t.DoubleType(), lambda data: struct.unpack(">d", data)[0]),
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
    **dict.fromkeys((_FIELD.TYPE_INT64, _FIELD.TYPE_SINT64, _FIELD.TYPE_SFIXED64, _FIELD.TYPE_UINT32, _FIELD.TYPE_FIXED32), _LONG),
    **dict.fromkeys((_FIELD.TYPE_UINT64, _FIELD.TYPE_FIXED64), t.DecimalType(20, 0)),
}


def columns_of(schema: Mapping[str, Any]) -> t.StructType:
    """Of a row of the registry (`type`, `data`). Raises ConfigError for what has no columns."""
    kind = schema["type"]
    if kind in _PRIMITIVES:
        return t.StructType([t.StructField("value", _PRIMITIVES[kind][0])])
    try:
        if kind in ("AVRO", "JSON"):
            found = _avro(json.loads(schema["data"]), {})
        elif kind == "PROTOBUF_NATIVE":
            found = _protobuf(_message(schema["data"]).DESCRIPTOR, ())
        else:
            raise ConfigError(f"a registered schema of type {kind} has no columns here: read the payload as it is (columns=raw), or declare JSON columns")
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"the registered {kind} schema cannot be read: {error}") from error
    if not isinstance(found, t.StructType):
        raise ConfigError(f"the registered {kind} schema is no record: {schema['data'][:200]}")
    return found


def decoder_of(written: Mapping[str, Any], newest: Mapping[str, Any]) -> Decode | None:
    """How payloads of the schema `written` are read; None: as JSON objects. Raises ConfigError."""
    kind = written["type"]
    if kind == "JSON":
        return None
    if kind in _PRIMITIVES:
        read = _PRIMITIVES[kind][1]
        return lambda data: {"value": read(data)}
    if kind == "AVRO":
        return _avro_decoder(json.loads(written["data"]), json.loads(newest["data"]) if newest["type"] == "AVRO" else None)
    if kind == "PROTOBUF_NATIVE":
        parse = _message(written["data"]).FromString
        return lambda data: _fields(parse(data))
    raise ConfigError(f"payloads of a registered schema of type {kind} cannot be read here")


# -- Avro -------------------------------------------------------------------------------------------------------------


def _avro(schema: Any, names: dict[str, Any]) -> t.DataType:
    """names: records, enums, and fixed that were defined before, which a later one may name."""
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) > 1:
            raise ConfigError(f"a union of {len(kinds)} types has no column; declare the other columns, and leave this one out: {schema}")
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


def _avro_decoder(written: Any, newest: Any) -> Decode:
    try:
        from fastavro import parse_schema, schemaless_reader
        from fastavro.read import SchemaResolutionError
    except ImportError as error:
        raise ConfigError("registered Avro schemas want the package fastavro, on the driver and on every worker: pip install 'heliograph[spark]'") from error
    writer = parse_schema(written)
    reader = parse_schema(newest) if newest is not None and newest != written else None

    def decode(data: bytes) -> Mapping[str, Any]:
        nonlocal reader
        if reader is not None:
            try:
                return schemaless_reader(io.BytesIO(data), writer, reader)  # type: ignore[return-value]
            except SchemaResolutionError:
                reader = None  # Avro does not allow it: what is there goes by name
        return schemaless_reader(io.BytesIO(data), writer, None)  # type: ignore[return-value]

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
    return t.StructType([t.StructField(field.name, _protobuf_type(field, (*above, message.full_name))) for field in message.fields])


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
