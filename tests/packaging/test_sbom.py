"""The bill of materials beside the wheels: all that is locked for servers, with sums, and the same each time."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tools import lock, sbom

LOCKED = lock.read((lock.FOLDER / "server.txt").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("heliograph-1.2.3-py3-none-any.whl", "heliograph_server-1.2.3-py3-none-any.whl", "other-1-x.whl"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_it_names_both_wheels_and_all_that_is_locked_with_their_sums(folder: Path) -> None:
    made = json.loads(sbom.write(folder).read_text())
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    sums = {each["purl"]: {one["content"] for one in each["hashes"]} for each in made["components"]}
    wheel = hashlib.sha256((folder / "heliograph_server-1.2.3-py3-none-any.whl").read_bytes()).hexdigest()
    assert sums["pkg:pypi/heliograph-server@1.2.3"] == {wheel}
    assert {key: value for key, value in sums.items() if "/heliograph" not in key} == {
        f"pkg:pypi/{one.name}@{one.version}": set(one.hashes) for one in LOCKED
    }
    assert made["dependencies"] == [
        {"ref": "heliograph", "dependsOn": [each["bom-ref"] for each in made["components"]]}
    ]


def test_the_same_wheels_have_the_same_bill(folder: Path) -> None:
    before = sbom.write(folder).read_bytes()
    assert sbom.write(folder).read_bytes() == before
    (folder / "heliograph-1.2.3-py3-none-any.whl").write_text("another")
    assert json.loads(before)["serialNumber"] != json.loads(sbom.write(folder).read_text())["serialNumber"]


def test_licences_are_what_the_packages_say() -> None:
    assert all(sbom.licences(name) for name in ("aiohttp", "cryptography", "msgpack"))
    assert sbom.licences("no-such-package") == []


def test_a_version_with_an_epoch_is_one_of_a_purl() -> None:
    assert sbom.purl("a_B", "1!2.0+x") == "pkg:pypi/a-b@1%212.0%2Bx"
