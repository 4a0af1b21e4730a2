"""Schema: one definition as a client brings it, checked for sense.

Is: Pulsar's types by number and by REST name, what must be true of a definition of each type, the two halves of a
KeyValue schema.
Isn't: whether one schema may follow another (`compatibility`), or storage (`schema_registry`).
Source: Pulsar's SchemaType, KeyValueSchemaInfo, and ProtobufNativeSchemaData; docs/protocols/pulsar.md, "Schemas".

    KeyValue:  u32 size | key's definition | u32 size | value's definition

The types and properties of the halves are in the KeyValue's properties.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import avro.errors
import avro.schema
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

from heliograph.model.errors import NotAllowed
from heliograph.wire.pulsar import pulsar_pb2 as pb

DEFINITION_BYTES_MAX = 512 << 10
"""No definition is larger: it is one value in the metadata."""
SCHEMA_PROPERTIES_BYTES_MAX = 64 << 10
"""Of a schema's name and properties together: those of a KeyValue's halves are JSON, which is parsed."""

TYPES: dict[str, int] = {
    "NONE": 0,
    "STRING": 1,
    "JSON": 2,
    "PROTOBUF": 3,
    "AVRO": 4,
    "BOOLEAN": 5,
    "INT8": 6,
    "INT16": 7,
    "INT32": 8,
    "INT64": 9,
    "FLOAT": 10,
    "DOUBLE": 11,
    "DATE": 12,
    "TIME": 13,
    "TIMESTAMP": 14,
    "KEY_VALUE": 15,
    "INSTANT": 16,
    "LOCAL_DATE": 17,
    "LOCAL_TIME": 18,
    "LOCAL_DATE_TIME": 19,
    "PROTOBUF_NATIVE": 20,
    "EXTERNAL": 22,
}
"""REST's name of a type -> its number on the wire. AUTO_CONSUME is none: nothing is ever stored as it."""
NAMES = {number: name for name, number in TYPES.items()}
BYTES = "BYTES"
"""REST's other name of NONE."""

NONE, KEY_VALUE, PROTOBUF_NATIVE = TYPES["NONE"], TYPES["KEY_VALUE"], TYPES["PROTOBUF_NATIVE"]
AVRO_DEFINED = frozenset((TYPES["AVRO"], TYPES["JSON"], TYPES["PROTOBUF"]))
"""Types whose definition is an Avro schema."""


class InvalidSchema(NotAllowed):
    """The definition makes no sense for its type."""


@dataclass(frozen=True, slots=True)
class Schema:
    """`type`: as the wire numbers it. `data`: the definition as the client wrote it."""

    type: int
    name: str
    data: bytes
    properties: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_wire(cls, schema: pb.Schema) -> Schema:
        return cls(schema.type, schema.name, schema.schema_data, {pair.key: pair.value for pair in schema.properties})

    def to_wire(self) -> pb.Schema:
        made = pb.Schema(name=self.name, schema_data=self.data, type=pb.Schema.Type.ValueType(self.type))
        for key, value in self.properties.items():
            made.properties.add(key=key, value=value)
        return made

    @property
    def type_name(self) -> str:
        return NAMES.get(self.type, str(self.type))

    @property
    def size_bytes(self) -> int:
        """About what it takes where it is stored."""
        return len(self.data) + self.properties_bytes

    @property
    def properties_bytes(self) -> int:
        """Counts the name and the properties, as they are stored."""
        return sum(len(text.encode()) for text in (self.name, *self.properties, *self.properties.values()))

    def same(self, other: Schema) -> bool:
        """Whether both say the same: they share a version then. Properties say something only of a KeyValue."""
        if self.type != other.type or self.data != other.data:
            return False
        if self.type != KEY_VALUE or self.properties == other.properties:
            return True
        if max(self.properties_bytes, other.properties_bytes) > SCHEMA_PROPERTIES_BYTES_MAX:
            return False  # an earlier release stored one: it would take long to parse it each time
        return halves(self) == halves(other)


def check_definition(schema: Schema) -> None:
    """Raises InvalidSchema: the type is not known, the definition is too large, or it is none of its type."""
    if schema.type not in NAMES:
        raise InvalidSchema(f"there is no schema of type {schema.type}; there are {', '.join(TYPES)}")
    if len(schema.data) > DEFINITION_BYTES_MAX:
        raise InvalidSchema(f"a schema of {len(schema.data):,} bytes; at most {DEFINITION_BYTES_MAX:,} are allowed")
    if (size := schema.properties_bytes) > SCHEMA_PROPERTIES_BYTES_MAX:
        raise InvalidSchema(
            f"a schema with {size:,} bytes of properties; at most {SCHEMA_PROPERTIES_BYTES_MAX:,} are allowed"
        )
    if schema.type in AVRO_DEFINED:
        parse_avro(schema.data)
    elif schema.type == KEY_VALUE:
        for half in halves(schema):
            check_definition(half)
    elif schema.type == PROTOBUF_NATIVE:
        root_message(schema.data)


@lru_cache(256)
def parse_avro(data: bytes) -> avro.schema.Schema:
    """Parses an Avro schema (JSON, UTF-8). Raises InvalidSchema. The newest 256 are remembered by their bytes."""
    try:
        return avro.schema.parse(data.decode())
    except (
        avro.errors.AvroException,
        UnicodeDecodeError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ) as error:
        raise InvalidSchema(f"the definition is no Avro schema: {str(error)[:300] or type(error).__name__}") from error


def halves(schema: Schema) -> tuple[Schema, Schema]:
    """(key's, value's) of a KeyValue schema. Raises InvalidSchema."""
    at, found = 0, []
    for half in ("key", "value"):
        size = int.from_bytes(schema.data[at : at + 4], "big", signed=True)
        size = max(size, 0)  # -1: a half without a definition
        data = schema.data[at + 4 : at + 4 + size]
        if len(schema.data) < at + 4 or len(data) != size:
            raise InvalidSchema("a KeyValue definition is two definitions, each behind its size in four bytes")
        at += 4 + size
        kind = TYPES.get(schema.properties.get(f"{half}.schema.type", "NONE").replace(BYTES, "NONE"))
        if kind is None or kind == KEY_VALUE:
            raise InvalidSchema(
                f"property {half}.schema.type is {schema.properties.get(f'{half}.schema.type')!r}, which is no type "
                f"of a {half}"
            )
        found.append(
            Schema(
                kind,
                schema.properties.get(f"{half}.schema.name", ""),
                data,
                _properties(schema.properties.get(f"{half}.schema.properties", "")),
            )
        )
    if at != len(schema.data):
        raise InvalidSchema("there is something behind the two definitions of a KeyValue schema")
    return found[0], found[1]


@lru_cache(4)
def _properties(text: str) -> dict[str, str]:
    """Nobody changes what is returned: the last ones are remembered, as one is compared with many."""
    try:
        found = json.loads(text) if text else {}
        if isinstance(found, dict):
            return {str(key): str(value) for key, value in found.items()}
    except (ValueError, RecursionError) as error:
        raise InvalidSchema("the properties of a half of a KeyValue schema are no JSON, or nested too deep") from error
    raise InvalidSchema("the properties of a half of a KeyValue schema are no JSON object")


def root_message(data: bytes) -> str:
    """The full name of the root message of a PROTOBUF_NATIVE definition. Raises InvalidSchema."""
    try:
        found: Any = json.loads(data)
        name, files = found["rootMessageTypeName"], found["fileDescriptorSet"]
        FileDescriptorSet.FromString(base64.b64decode(files, validate=True))
    except (ValueError, KeyError, TypeError, binascii.Error, DecodeError, RecursionError) as error:
        raise InvalidSchema(
            "a PROTOBUF_NATIVE definition is a JSON object with rootMessageTypeName, rootFileDescriptorName, and "
            "fileDescriptorSet (base64)"
        ) from error
    if not isinstance(name, str) or not name:
        raise InvalidSchema("a PROTOBUF_NATIVE definition names its root message")
    return name
