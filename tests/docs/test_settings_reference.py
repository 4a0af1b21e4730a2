"""The page of settings and the schemas are what the classes give, and each setting of an operator says what it is."""

from __future__ import annotations

import dataclasses
import json
import typing

from heliograph.model.configuration.setting import marks
from region_node.process.settings import ProcessSettings, section_of
from tools import settings_reference
from tools.settings_reference import sections


def test_the_page_and_the_schemas_are_made_of_the_classes() -> None:
    made = settings_reference.files()
    stale = [path.name for path, text in made.items() if not path.exists() or path.read_text() != text]
    assert not stale, "run `make reference`"


def test_each_setting_says_what_it_is() -> None:
    """A sentence below its field; the unit of a time, of bytes, and of a rate is in the mark, as in the name."""
    units = {"_s": "s", "_ms": "ms", "_mb": "MiB", "_bytes": "bytes", "_per_s": "B/s"}
    others = {
        "messages_s": "messages/s",
        "bandwidth_mb_s": "MB/s",
        "network_mb_s": "MB/s",
        "entries_per_s": "entries/s",
    }
    for entry in (one for section in sections() for one in section.entries):
        assert entry.what.endswith((".", ")")), f"{entry.path}: a sentence says what it is"
        name = entry.path.rpartition(".")[2]
        ending = max((end for end in units if name.endswith(end)), key=len, default="")
        assert not ending or entry.mark.unit == others.get(name, units[ending]), f"{entry.path}: its unit"


def test_what_has_no_mark_is_a_section_or_inner() -> None:
    """Whoever adds a field decides whether it is an operator's."""
    found, waiting = set[str](), [ProcessSettings]
    while waiting:
        kind = waiting.pop()
        hints = typing.get_type_hints(kind)
        for name in {entry.name for entry in dataclasses.fields(kind)} - set(marks(kind)):
            section = section_of(hints[name])
            if section is None:
                found.add(f"{kind.__name__}.{name}")
            else:
                waiting.append(section)
    inner = ("frame_bytes_max", "unsent_bytes", "open_logs_max", "index_bytes_max", "held_looks_max")
    assert found == {f"BookieSettings.{name}" for name in (*inner, "free_bytes_min", "free_bytes_again")}


def test_a_schema_refuses_what_a_process_refuses() -> None:
    schema = json.loads(settings_reference.SCHEMA.read_text())
    broker = schema["properties"]["broker"]
    assert schema["required"] == ["region", "node_id"] and not broker["additionalProperties"]
    assert (broker["properties"]["port"]["minimum"], broker["properties"]["port"]["maximum"]) == (-1, 65535)
    assert broker["properties"]["drain_timeout_s"]["exclusiveMinimum"] == 0
    assert broker["properties"]["cacheEvictionByMarkDeletedPosition"]["type"] == "boolean"
    assert broker["properties"]["managedLedgerCacheSizeMB"]["maximum"] == 1 << 20
    assert schema["properties"]["tls"]["type"] == ["object", "null"]
    values = json.loads(settings_reference.VALUES.read_text())
    assert values["properties"]["bookies"]["properties"]["settings"] == {"$ref": "#/definitions/bookie"}
    in_chart = values["definitions"]["broker"]["properties"]
    assert (
        in_chart.keys() == broker["properties"].keys() and not values["definitions"]["broker"]["additionalProperties"]
    )
    assert in_chart["port"] == {**broker["properties"]["port"], "type": ["integer", "null"]}, "null takes it away"
