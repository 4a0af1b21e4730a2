"""Writes heliograph/wire/pulsar/pulsar.proto from a table of Pulsar's wire fields, and generates pulsar_pb2.py and .pyi
from it.

Run: python tools/make_proto.py TABLE.tsv      (without a table: only generates from the .proto that is there)
The table has one row a field or enum value: kind, name, field_or_value, number, label, type, default, deprecated.
Nested names are written `Outer.Inner`. Wants grpcio-tools and mypy-protobuf (extra `dev`).
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "heliograph" / "wire" / "pulsar" / "pulsar.proto"
HEAD = """// Pulsar's binary protocol: commands, message metadata, and their parts.
// Field numbers, types, and defaults are the protocol's.
// Written by tools/make_proto.py; see docs/protocols/pulsar.md for what each command asks of a server.
syntax = "proto2";
package heliograph.pulsar;
"""
EMPTY = ("CommandPing", "CommandPong")


def proto_text(rows: list[dict[str, str]]) -> str:
    """The .proto of all rows, in the order in which names first appear; nested enums inside their message."""
    blocks: dict[str, list[dict[str, str]]] = {}
    kinds: dict[str, str] = {}
    for row in rows:
        blocks.setdefault(row["name"], []).append(row)
        kinds[row["name"]] = row["kind"]
    out = [HEAD]
    for name, fields in blocks.items():
        if "." in name:
            continue
        nested = [n for n in blocks if n.startswith(f"{name}.")]
        out.append(f"{kinds[name]} {name} {{")
        for inner in nested:
            out += [
                f"  enum {inner.split('.')[1]} {{",
                *(f"    {r['field_or_value']} = {r['number']};" for r in blocks[inner]),
                "  }",
            ]
        if kinds[name] == "enum":
            out += [f"  {r['field_or_value']} = {r['number']};" for r in fields]
        else:
            out += _fields(fields)
        out.append("}\n")
    out += [f"message {name} {{\n}}\n" for name in EMPTY if name not in blocks]
    return "\n".join(out)


def _fields(fields: list[dict[str, str]]) -> list[str]:
    out: list[str] = []
    for row in fields:
        one_of = row["label"].partition(" ")[2] if row["label"].startswith("oneof") else ""
        options = [f"default = {row['default']}"] if row["default"] else []
        tail = f" [{', '.join(options)}]" if options else ""
        if one_of:
            opening = f"  oneof {one_of} {{"
            line = f"    {row['type']} {row['field_or_value']} = {row['number']};"
            if opening in out:
                out.insert(len(out) - 1, line)
            else:
                out += [opening, line, "  }"]
        else:
            out.append(f"  {row['label']} {row['type']} {row['field_or_value']} = {row['number']}{tail};")
    return out


def main() -> None:
    from grpc_tools import protoc

    if len(sys.argv) > 1:
        with open(sys.argv[1], newline="") as table:
            PROTO.write_text(proto_text(list(csv.DictReader(table, delimiter="\t"))))
    folder = str(PROTO.parent)
    status = protoc.main(["protoc", f"-I{folder}", f"--python_out={folder}", f"--mypy_out=quiet:{folder}", str(PROTO)])
    raise SystemExit(status)


if __name__ == "__main__":
    main()
