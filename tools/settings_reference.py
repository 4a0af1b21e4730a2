"""Makes of the classes of settings what operators and editors read: docs/reference/settings.md, settings.schema.json
beside it, and the part of deploy/helm/heliograph/values.schema.json that is about settings.

Is: `python -m tools.settings_reference` (`make reference`). Isn't: needed to run anything; the files are in the
repository, and tests/docs/test_settings_reference.py compares them with what this makes.
A setting's name, type, default, and marks are those of its field (`heliograph.model.configuration.setting`); what it
is says the text below the field.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from heliograph.model.configuration.setting import SettingMark, marks
from region_node.process.settings import PULSAR_NAMES, BrokerSettings, ProcessSettings, section_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "settings.md"
SCHEMA = ROOT / "docs" / "reference" / "settings.schema.json"
VALUES = ROOT / "deploy" / "helm" / "heliograph" / "values.schema.json"
DRAFT = "http://json-schema.org/draft-07/schema#"
WIDTH = 160
"""A value of a schema that is shorter, and holds nothing that is longer, stands in one line."""
HEAD = """# Settings

All that an operator can set of a process, made of the classes by `make reference`. A process reads one JSON object
(`--settings FILE`, see [operating](../operating.md#settings)); `HELIOGRAPH_…` variables replace single settings:
`broker.cache_mb` is `HELIOGRAPH_BROKER__CACHE_MB`. Editors take [settings.schema.json](settings.schema.json) for such a
file. The chart's `brokers.settings`, `bookies.settings`, and `security` are the sections `broker`, `bookie`, and
`security`; `settings` in the description of hosts is the whole object.

The last column is the name in Pulsar, BookKeeper, or Kafka, with its unit where that is another one. In the section
`broker` itself, those without one may stand in the place of ours, whatever the case of their letters.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting: path is its full name."""

    path: str
    what: str
    mark: SettingMark
    kind: Any
    default: Any


@dataclass(frozen=True, slots=True)
class Section:
    """A class at a place. each: it is given as a list of objects."""

    path: str
    what: str
    each: bool
    entries: tuple[Entry, ...]


@cache
def texts(kind: type) -> dict[str, str]:
    """Returns field -> the text below it, in one line."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for one, text in zip(node.body, node.body[1:], strict=False):
        match one, text:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(value))):
                found[name] = " ".join(value.split())
    return found


def sections(kind: type = ProcessSettings, path: str = "", what: str = "", each: bool = False) -> Iterator[Section]:
    """Yields the section of `kind`, then those in it, in the order of its fields."""
    hints, marked, said = typing.get_type_hints(kind), marks(kind), texts(kind)
    entries, inner = [], []
    for field in dataclasses.fields(kind):
        name = f"{path}.{field.name}" if path else field.name
        hint, text = hints[field.name], said.get(field.name, "")
        if field.name in marked:
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            entries.append(Entry(name, text, marked[field.name], hint, default))
        elif (section := section_of(hint)) is not None:
            inner.append((section, name, text, typing.get_origin(hint) is tuple))
    own = inspect.cleandoc(kind.__doc__ or "")
    if own.startswith(f"{kind.__name__}("):  # what a dataclass says of itself where nobody does
        own = ""
    yield Section(path, what or " ".join(own.split()), each, tuple(entries))
    for section, name, text, many in inner:
        yield from sections(section, name, text, many)


# -- the page ---------------------------------------------------------------------------------------------------------


def page() -> str:
    parts = [HEAD]
    for section in sections():
        title = section.path or "All processes"
        parts += [f"## {title}{' (a list)' if section.each else ''}", ""]
        if section.path and section.what:
            parts += [section.what, ""]
        if section.entries:
            parts += ["| setting | what it is | unit | default | bounds | elsewhere |", "|---|---|---|---|---|---|"]
            parts += [_row(entry) for entry in section.entries] + [""]
    return "\n".join(parts)


def _row(entry: Entry) -> str:
    mark = entry.mark
    elsewhere = ""
    if mark.theirs:
        name, _, form = mark.theirs.partition(" ")
        elsewhere = f"`{name}`{f' {form}' if form else ''}"
    cells = (f"`{entry.path}`", entry.what, mark.unit, _shown(entry), mark.bounds(), elsewhere)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _shown(entry: Entry) -> str:
    if entry.default is dataclasses.MISSING:
        return "must be set"
    value = _plain(entry.default)
    text = f"`{json.dumps(value)}`"
    if entry.mark.unit in ("bytes", "B/s") and isinstance(value, int) and value >= 1024 and value % 1024 == 0:
        text += f" ({value >> 20} MiB)" if value % (1 << 20) == 0 else f" ({value >> 10} KiB)"
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return int(value) if isinstance(value, float) and value.is_integer() else value


# -- the schema -------------------------------------------------------------------------------------------------------


def schema_of(kind: type) -> dict[str, Any]:
    """Returns the JSON Schema of an object of this class."""
    hints, marked, said = typing.get_type_hints(kind), marks(kind), texts(kind)
    properties: dict[str, Any] = {}
    required = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if field.name in marked:
            properties[field.name] = _leaf(hint, marked[field.name], said.get(field.name, ""), field.default)
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                required.append(field.name)
        elif (section := section_of(hint)) is not None:
            inside = schema_of(section)
            if typing.get_origin(hint) is tuple:
                inside = {"type": "array", "items": inside}
            elif type(None) in typing.get_args(hint):
                inside["type"] = ["object", "null"]
            properties[field.name] = inside
    if kind is BrokerSettings:
        for theirs, ours in sorted(PULSAR_NAMES.items()):
            same = {k: v for k, v in properties[ours].items() if k not in ("description", "default")}
            properties[theirs] = {**({"type": "boolean"} if ours == "cache_eviction" else same), "description": ours}
    made: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**made, "required": required} if required else made


def _leaf(hint: Any, mark: SettingMark, what: str, default: Any) -> dict[str, Any]:
    made: dict[str, Any] = _type(hint)
    if mark.one_of:
        made["enum"] = list(mark.one_of)
    bounds = (
        ("minimum", mark.least),
        ("exclusiveMinimum", mark.above),
        ("maximum", mark.most),
        ("exclusiveMaximum", mark.below),
    )
    made |= {word: _plain(value) for word, value in bounds if value is not None}
    if default is not dataclasses.MISSING:
        made["default"] = _plain(default)
    return {**made, "description": f"{what}{f' ({mark.unit})' if mark.unit else ''}"}


def _type(hint: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (one,) = (each for each in arguments if each is not type(None))
        return {"type": [_type(one)["type"], "null"]}
    if origin is tuple:
        return {"type": "array", "items": _type(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": True if arguments[1] is Any else _type(arguments[1])}
    return {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[hint]}


def schema() -> dict[str, Any]:
    return {"$schema": DRAFT, "title": "Settings of a process of Heliograph", **schema_of(ProcessSettings)}


def _or_null(made: dict[str, Any]) -> dict[str, Any]:
    """Values of a chart are taken away by null."""
    out = dict(made)
    if isinstance(out.get("type"), str):
        out["type"] = [out["type"], "null"]
    if "enum" in out:
        out["enum"] = [*out["enum"], None]
    if "properties" in out:
        out["properties"] = {name: _or_null(each) for name, each in out["properties"].items()}
    return out


def values_schema(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the chart's schema with the part that is about settings made anew."""
    process = schema_of(ProcessSettings)["properties"]
    places = {"broker": ("brokers", "settings"), "bookie": ("bookies", "settings"), "security": ("security",)}
    made = {**values, "definitions": {name: _or_null(process[name]) for name in places}}
    for name, (first, *rest) in places.items():
        there = {"$ref": f"#/definitions/{name}"}
        for word in rest:
            inside = made["properties"][first]
            there = {**inside, "properties": {**inside["properties"], word: there}}
        made["properties"] = {**made["properties"], first: there}
    return made


def text_of(value: Any, indent: str = "") -> str:
    """Returns JSON that people read: what is short stands in one line, and so does a setting."""
    line = json.dumps(value, ensure_ascii=False)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    leaf = isinstance(value, dict) and "description" in value and "properties" not in value
    if leaf or len(indent) + len(line) <= WIDTH or not any(isinstance(each, dict | list) for each in inner):
        return line
    deeper = f"{indent}  "
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"{deeper}{text_of(each, deeper)}" for each in value) + f"\n{indent}]"
    rows = (f"{deeper}{json.dumps(name)}: {text_of(each, deeper)}" for name, each in value.items())
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


def files() -> dict[Path, str]:
    """Returns what each file holds."""
    return {
        PAGE: page(),
        SCHEMA: text_of(schema()) + "\n",
        VALUES: text_of(values_schema(json.loads(VALUES.read_text()))) + "\n",
    }


def main() -> None:
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
