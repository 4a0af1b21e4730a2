"""A bill of materials of what the wheels bring, in CycloneDX 1.6: both wheels, and each version of
`requirements/server.txt` with the sums of its files, and its licence where the environment knows the package.

Is: what `make wheels` writes beside the wheels. Isn't: of the image's Debian, or of what `make setup` installs for
developers.
Invariants: the same wheels and lock give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import lock

_NAMES = uuid.uuid5(uuid.NAMESPACE_DNS, "bom.heliograph")


def purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name.lower().replace('_', '-')}@{quote(version, safe='')}"


def licences(name: str) -> list[dict[str, Any]]:
    """What the package's own metadata says; empty where it is not installed here, or says nothing short."""
    try:
        said = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return []
    if expression := said.get("License-Expression"):
        return [{"expression": expression}]
    classified = [each.rpartition(" :: ")[2] for each in said.get_all("Classifier") or () if each.startswith("License")]
    text = said.get("License") or ""
    names = classified or ([text] if text and len(text) < 100 and "\n" not in text else [])
    return [{"license": {"name": each}} for each in names]


def component(name: str, version: str, sums: tuple[str, ...], kind: str = "library") -> dict[str, Any]:
    made: dict[str, Any] = {"type": kind, "bom-ref": purl(name, version), "name": name, "version": version}
    made["purl"] = purl(name, version)
    made["hashes"] = [{"alg": "SHA-256", "content": each} for each in sums]
    if found := licences(name):
        made["licenses"] = found
    return made


def bill(wheels: list[Path], locked: list[lock.Locked]) -> dict[str, Any]:
    """Of these wheels and what they want. A version that only other systems install is named with its marker."""
    ours = []
    for wheel in sorted(wheels):
        name, version = wheel.name.split("-")[:2]
        ours.append(component(name.replace("_", "-"), version, (hashlib.sha256(wheel.read_bytes()).hexdigest(),)))
    others = []
    for one in locked:
        made = component(one.name, one.version, one.hashes)
        if one.marker:
            made["properties"] = [{"name": "heliograph:marker", "value": one.marker}]
        others.append(made)
    whole = component("heliograph", ours[0]["version"], (), "application")
    whole["bom-ref"] = "heliograph"
    del whole["hashes"]
    refs = [each["bom-ref"] for each in [*ours, *others]]
    made = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": whole},
        "components": [*ours, *others],
        "dependencies": [{"ref": "heliograph", "dependsOn": refs}],
    }
    made["serialNumber"] = f"urn:uuid:{uuid.uuid5(_NAMES, json.dumps(made, sort_keys=True))}"
    return made


def write(folder: Path) -> Path:
    """Beside the wheels of that folder that are ours; returns the file."""
    wheels = [*folder.glob("heliograph-*.whl"), *folder.glob("heliograph_server-*.whl")]
    made = bill(wheels, lock.read((lock.FOLDER / "server.txt").read_text()))
    path = folder / f"heliograph-{made['metadata']['component']['version']}.cdx.json"
    path.write_text(json.dumps(made, indent=2, sort_keys=True) + "\n")
    return path
