"""Schemas' definitions for tests."""

from __future__ import annotations

import json
from typing import Any

from region_node.schemas.schema_definition import TYPES, Schema

INT, LONG = {"name": "a", "type": "int"}, {"name": "a", "type": "long"}
OPTIONAL, REQUIRED = {"name": "b", "type": ["null", "string"], "default": None}, {"name": "c", "type": "string"}


def avro(*fields: Any, name: str = "R", kind: str = "AVRO") -> Schema:
    return Schema(TYPES[kind], "t", json.dumps({"type": "record", "name": name, "fields": list(fields)}).encode())


def plain(kind: str) -> Schema:
    return Schema(TYPES[kind], "t", b"")
