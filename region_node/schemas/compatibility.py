"""May one schema follow others: the eight strategies, for every type.

Is: pure. Isn't: which strategy holds (`heliograph.model.configuration.policy_table`), or storage.
Rule: BACKWARD: the new schema reads what the last one wrote; FORWARD: the last one reads what the new one writes; FULL:
both; each TRANSITIVE one asks that of every schema, not only of the last. Names of records do not matter, as to Avro's
resolution in Java, which real brokers use.
Source: docs/protocols/pulsar.md, "Schemas"; the Avro specification, "Schema Resolution".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from avro.compatibility import (
    CompatibleResult,
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityResult,
    SchemaCompatibilityType,
    SchemaIncompatibilityType,
    incompatible,
    merge,
)
from avro.schema import RecordSchema
from avro.schema import Schema as AvroSchema

from heliograph.model.errors import TopicError
from region_node.schemas.schema_definition import (
    AVRO_DEFINED,
    KEY_VALUE,
    PROTOBUF_NATIVE,
    Schema,
    halves,
    parse_avro,
    root_message,
)

DEFAULT = "FULL"
ALWAYS, NEVER = "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE"
_OF_CONSUMERS_LATEST = frozenset(("BACKWARD", "FORWARD", "FORWARD_TRANSITIVE", "FULL"))


class IncompatibleSchema(TopicError):
    """The schema may not follow those that the topic has, or is refused by a policy."""


def strategy_of(policy: str) -> str:
    """The strategy that a policy means."""
    return DEFAULT if policy in ("", "UNDEFINED") else policy


def check_new(schema: Schema, existing: Sequence[Schema], strategy: str) -> None:
    """existing: in their order; the last one counts most. Raises IncompatibleSchema."""
    if strategy == ALWAYS or not existing:
        return
    against = existing if strategy.endswith("_TRANSITIVE") else existing[-1:]
    for other in against:
        if other.type != schema.type:
            raise IncompatibleSchema(
                f"the topic has a schema of type {other.type_name}, this one is of type {schema.type_name}"
            )
    if strategy == NEVER:
        raise IncompatibleSchema("the policy ALWAYS_INCOMPATIBLE takes no other schema than the one that the topic has")
    direction = strategy.removesuffix("_TRANSITIVE")
    for other in against:
        if direction in ("BACKWARD", "FULL"):
            _check_reads(schema, other, strategy, "this schema cannot read what an earlier one wrote")
        if direction in ("FORWARD", "FULL"):
            _check_reads(other, schema, strategy, "an earlier schema cannot read what this one writes")


def check_consumer(schema: Schema, existing: Sequence[Schema], strategy: str) -> None:
    """Whether a consumer with `schema` may read the topic. Raises IncompatibleSchema."""
    if strategy == ALWAYS:
        return
    if not existing:
        raise IncompatibleSchema("the topic has no schema that this consumer's could be checked against")
    if strategy in _OF_CONSUMERS_LATEST:
        check_new(schema, existing[-1:], "BACKWARD")
    elif not (strategy == NEVER and schema.same(existing[-1])):
        check_new(schema, existing, strategy)


def _check_reads(reader: Schema, writer: Schema, strategy: str, what: str) -> None:
    why = _why_not(reader, writer)
    if why:
        raise IncompatibleSchema(f"{what} (strategy {strategy}): {why}")


def _why_not(reader: Schema, writer: Schema) -> str:
    """ "" where `reader` reads what `writer` writes."""
    if reader.type != writer.type:
        return f"{writer.type_name} is not {reader.type_name}"
    if reader.type in AVRO_DEFINED:
        found = _checker().get_compatibility(parse_avro(reader.data), parse_avro(writer.data))
        if found.compatibility is not SchemaCompatibilityType.compatible:
            return "; ".join(
                sorted(
                    f"{place}: {text}"
                    for place, text in zip(sorted(found.locations), sorted(found.messages), strict=False)
                )
            )[:500]
    elif reader.type == KEY_VALUE:
        for name, ours, theirs in zip(("key", "value"), halves(reader), halves(writer), strict=True):
            why = _why_not(ours, theirs)
            if why:
                return f"{name}: {why}"
    elif reader.type == PROTOBUF_NATIVE:
        root, other_root = root_message(reader.data), root_message(writer.data)
        if root != other_root:
            return f"the root message is {root}, and was {other_root}"
    return ""


class _Checker(ReaderWriterCompatibilityChecker):
    """As Avro's resolution in Java: records are matched by their fields, whatever they are called."""

    def calculate_compatibility(
        self, reader: AvroSchema, writer: AvroSchema, location: list[str]
    ) -> SchemaCompatibilityResult:
        if isinstance(reader, RecordSchema) and isinstance(writer, RecordSchema):
            return self.check_reader_writer_record_fields(reader, writer, location)
        return super().calculate_compatibility(reader, writer, location)

    def check_reader_writer_record_fields(
        self, reader: RecordSchema, writer: RecordSchema, location: list[str]
    ) -> SchemaCompatibilityResult:
        """Answers as the library's, which makes a table of all of the writer's fields for each of the reader's."""
        result, written = CompatibleResult, writer.fields_dict
        for index, field in enumerate(reader.fields):
            place, aliases = [*location, "fields", str(index)], field.props.get("aliases")
            names = [field.name, *(aliases if isinstance(aliases, Iterable) else ())]
            other = next((written[name] for name in names if name in written), None)
            if other is not None:
                found = self.get_compatibility(field.type, other.type, "type", place)
            elif field.has_default:
                continue
            elif field.type.type == "enum" and field.type.props.get("default"):
                found = self.get_compatibility(field.type, writer, "type", place)
            else:
                found = incompatible(SchemaIncompatibilityType.reader_field_missing_default_value, field.name, place)
            result = merge(result, found)
        return result


def _checker() -> _Checker:
    make = cast("Callable[[], _Checker]", _Checker)  # its initializer has no types
    return make()
