"""Payloads that are given as JSON are written as their schema wants it."""

from __future__ import annotations

import io
import json
from typing import Any

import avro.io
import avro.schema
import pytest

from heliograph.model.errors import MalformedRequest
from region_node.schemas.json_payloads import PayloadSteps, avro_encoder

KINDS: list[Any] = [*({"type": "enum", "name": f"E{n}", "symbols": [f"S{n}"]} for n in range(9)), "int"]


def test_avro_payloads_are_written_as_by_avro_itself() -> None:
    fields = [{"name": "u", "type": KINDS}, {"name": "m", "type": {"type": "map", "values": "string"}}]
    definition = json.dumps({"type": "record", "name": "R", "fields": [*fields, {"name": "n", "type": ["null", "R"]}]})
    value = {"u": "S3", "m": {"a": "b"}, "n": {"u": 7, "m": {}, "n": None}}
    out = io.BytesIO()
    avro.io.DatumWriter(avro.schema.parse(definition)).write(value, avro.io.BinaryEncoder(out))
    encode = avro_encoder(definition, PayloadSteps(100_000, 1_000_000))
    assert encode(value) == encode(json.dumps(value)) == out.getvalue()
    for wrong in ({}, {**value, "u": "S9"}, {**value, "x": 1}, {**value, "n": {**value, "m": 7}}):
        with pytest.raises(MalformedRequest, match="does not fit"):
            encode(wrong)
