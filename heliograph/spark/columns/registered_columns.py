"""Payloads of registered schemas: each message by the schema that it was written with, into the columns that are
wanted.

Is: the columns of a topic's newest schema; Arrow batches of several versions and topics. Isn't: what a schema means
(`registered_schemas`).
Invariants: a payload is a row; one that its schema cannot read is a bad row as of the declared columns' modes, and so
is one of a schema that is not there. A field that a version has not got is null, or its default by the newest schema.
Source: docs/spark.md, "Registered schemas".
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from heliograph.client.block_reader import BlockReader
from heliograph.model.errors import ConfigError
from heliograph.spark.columns.declared_columns import ABOUT, CORRUPT, Declared
from heliograph.spark.columns.entry_columns import MessageRows
from heliograph.spark.columns.json_coercion import Unfit, reader_of
from heliograph.spark.columns.registered_schemas import Decode, Pairs, columns_of, decoder_of


class Registered:
    """declared: the columns that are wanted, and what becomes of bad rows."""

    def __init__(self, declared: Declared) -> None:
        self._declared = declared
        self.about = declared.about
        self.keyed = any(field.name == "key" for field in declared.fields)
        """Whether the keys of messages may be wanted: a KEY_VALUE's may stand there."""
        self._reader: BlockReader | None = None
        self._decoders: dict[tuple[str, int | None], Decode | Pairs | ConfigError | None] = {}
        self._versions: dict[str, dict[int, dict[str, Any]]] = {}

    def learn(self, reader: BlockReader) -> None:
        """From where the schemas of topics come: asked once a topic and task."""
        self._reader = reader

    def of(self, rows: MessageRows) -> pa.RecordBatch:
        declared, wrong = self._declared, dict.fromkeys(rows.bad)
        keys = keys_of(rows.column("key", pa.string()), rows.column("base64_key", pa.bool_())) if self.keyed else None
        columns = self.columns(rows.schema_versions(), rows.values, wrong, keys)
        return declared.assembled(columns, rows.values, declared.about_of(rows), rows.place, wrong)

    def columns(
        self,
        spans: Iterable[tuple[str, int | None, int, int]],
        values: list[bytes | None],
        wrong: dict[int, None],
        keys: Sequence[bytes | None] | None = None,
    ) -> list[pa.Array]:
        """spans: (topic, schema version, first row, the one behind the last) of all rows. wrong: gets the numbers of
        rows that do not fit.

        keys: of the messages; without them, those of a KEY_VALUE that keeps its keys there do not fit where they are
        wanted.
        """
        declared = self._declared
        pieces: list[list[pa.Array]] = []
        for topic, version, start, stop in spans:
            payloads = values[start:stop]
            decode = self._decoder(topic, version)
            if isinstance(decode, ConfigError):
                wrong |= dict.fromkeys(range(start, stop))
                pieces.append([pa.nulls(stop - start, field.type) for field in declared.fields])
            elif decode is None:
                pieces.append(declared.columns([b"{}" if each is None else each for each in payloads], start, wrong))
            elif isinstance(decode, Pairs):
                pieces.append(self._paired(decode, payloads, None if keys is None else keys[start:stop], start, wrong))
            else:
                pieces.append(self._decoded(decode, payloads, start, wrong))
        return [pa.concat_arrays(parts) for parts in zip(*pieces, strict=True)]

    def _decoder(self, topic: str, version: int | None) -> Decode | Pairs | ConfigError | None:
        """version None: of a message that names none; it is read by the newest."""
        key = topic, version
        if key not in self._decoders:
            if topic not in self._versions:
                assert self._reader is not None
                self._versions[topic] = {row["version"]: row for row in self._reader.schemas(topic)}
            known = self._versions[topic]
            newest = next(
                reversed(known.values()), None
            )  # as they came: of numbers, those of another region are all higher, or all lower
            written = newest if version is None else known.get(version)
            try:
                if written is None or newest is None:
                    raise ConfigError(f"{topic} has no registered schema of version {version}")
                self._decoders[key] = decoder_of(written, newest)
            except (ConfigError, ValueError, KeyError, TypeError) as error:
                self._decoders[key] = ConfigError(str(error))
        return self._decoders[key]

    def _decoded(
        self, decode: Decode, payloads: list[bytes | None], first: int, wrong: dict[int, None]
    ) -> list[pa.Array]:
        fields = self._declared.fields
        columns: list[list[Any]] = [[] for _ in fields]
        names = [field.name for field in fields]
        for row, payload in enumerate(payloads, first):
            given: Mapping[str, Any] = {}
            if payload is not None:
                try:
                    given = dict(decode(payload))  # of a schema that is no record, anything else
                except Exception:  # each library has errors of its own, and any payload may be nonsense
                    wrong[row] = None
            for name, column in zip(names, columns, strict=True):
                column.append(given.get(name))
        return [_array(column, field.type, first, wrong) for column, field in zip(columns, fields, strict=True)]

    def _paired(
        self,
        pairs: Pairs,
        payloads: list[bytes | None],
        keys: Sequence[bytes | None] | None,
        first: int,
        wrong: dict[int, None],
    ) -> list[pa.Array]:
        halves = {"key": pairs.key, "value": pairs.value}
        fields = self._declared.fields
        reads = {field.name: halves[field.name] or _json_reader(field.type) for field in fields if field.name in halves}
        columns: dict[str, list[Any]] = {field.name: [] for field in fields}
        unknown = pairs.separated and keys is None and self.keyed
        for row, payload in enumerate(payloads, first):
            parts: dict[str, bytes | None] = {}
            try:
                parts = pairs.cut(payload, None if keys is None else keys[row - first])
            except ValueError:
                wrong[row] = None
            if unknown:
                wrong[row] = None
            for name, column in columns.items():
                data, value = parts.get(name), None
                if data is not None and name in reads:
                    try:
                        value = reads[name](data)
                    except Unfit as error:
                        value, wrong[row] = error.kept, None
                    except Exception:  # as above
                        wrong[row] = None
                column.append(value)
        return [_array(columns[field.name], field.type, first, wrong) for field in fields]


def keys_of(texts: pa.Array, encoded: pa.Array) -> list[bytes | None]:
    """As producers gave them. What is said to be base64 and is not is taken as it is."""
    found: list[bytes | None] = []
    for text, is_base64 in zip(texts.to_pylist(), encoded.to_pylist(), strict=True):
        try:
            found.append(
                None if text is None else base64.b64decode(text, validate=True) if is_base64 else text.encode()
            )
        except ValueError:
            found.append(text.encode())
    return found


def _json_reader(kind: pa.DataType) -> Callable[[bytes], Any]:
    read, decode = reader_of(kind), msgspec.json.Decoder(float_hook=Decimal).decode

    def value_of(data: bytes) -> Any:
        given = decode(data)
        return None if given is None else read(given)

    return value_of


def _array(values: list[Any], kind: pa.DataType, first: int, wrong: dict[int, None]) -> pa.Array:
    """Values that the column cannot hold are null, and their rows wrong."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, OverflowError):
        found = []
        for row, value in enumerate(values, first):
            try:
                found.append(pa.scalar(value, kind))
            except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, OverflowError):
                found.append(pa.scalar(None, kind))
                wrong[row] = None
        return pa.array([each.as_py() for each in found], kind)


def registered_columns(reader: BlockReader, topics: list[str]) -> StructType:
    """The columns of the topics' newest schema, `_topic`, and `_corrupt_record`. Raises ConfigError where there is
    none, or where topics differ.
    """
    found: StructType | None = None
    named = ""
    for topic in topics:
        schemas = reader.schemas(topic)
        if not schemas:
            continue
        columns = columns_of(schemas[-1])
        if found is not None and columns != found:
            raise ConfigError(f"{named} and {topic} have different schemas: declare the columns that you want of both")
        found, named = columns, topic
    if found is None:
        raise ConfigError(
            "no topic has a registered schema: declare the columns, or read the payload as it is (columns=raw)"
        )
    clash = {*ABOUT, CORRUPT} & set(found.fieldNames())
    if clash:
        raise ConfigError(
            f"the registered schema of {named} has a field {min(clash)!r}, which is a column of the message: declare "
            "the others"
        )
    return StructType([*found.fields, StructField("_topic", StringType()), StructField(CORRUPT, StringType())])
