"""The contracts of imports tell the truth: what they let pass is what is there today, and may only become less.

`lint-imports` holds the layers (contracts.toml). Here: circles of modules, and how many breaches the layers have.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import grimp
import pytest

from tools.house import circles

ROOT = Path(__file__).resolve().parents[1]
CONTRACTS: dict[str, Any] = tomllib.loads((ROOT / "contracts.toml").read_text())["tool"]
BREACHES_MAX = 12
"""Imports against the layers. Lower it when there are fewer; it is never raised."""


@pytest.fixture(scope="module")
def imports() -> dict[str, list[str]]:
    """By module, the modules of ours that it imports: at run time, inside functions, and for types alone."""
    roots = CONTRACTS["importlinter"]["root_packages"]
    graph = grimp.build_graph(*roots, cache_dir=None, exclude_type_checking_imports=False)
    return {module: sorted(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


@pytest.mark.slow
def test_the_circles_of_modules_are_those_that_are_known(imports: dict[str, list[str]]) -> None:
    known, there = sorted(CONTRACTS["circles"]["modules"]), circles(imports)
    new = [circle for circle in there if not any(set(circle) <= set(old) for old in known)]
    gone = [circle for circle in known if circle not in there]
    assert not new, f"modules import each other in a circle: move what both need to a third: {new}"
    assert not gone, f"these circles are gone or smaller: write down in contracts.toml what is left of them: {gone}"


def test_the_breaches_of_layers_become_fewer() -> None:
    layers = [one for one in CONTRACTS["importlinter"]["contracts"] if one["type"] == "layers"]
    count = sum(len(one.get("ignore_imports", ())) for one in layers)
    assert count <= BREACHES_MAX, "a new import goes against the layers: let it point down"
    assert count == BREACHES_MAX, f"there are {count} breaches now: lower BREACHES_MAX to it"


def test_every_package_has_layers() -> None:
    """A package with packages inside says in which order they stand; `commands` and `hosts` have none to order."""
    ordered = {one for contract in CONTRACTS["importlinter"]["contracts"] for one in contract.get("containers", ())}
    missing = []
    for root in CONTRACTS["importlinter"]["root_packages"]:
        for init in sorted((ROOT / root).rglob("__init__.py")):
            package = init.parent
            inner = [each for each in package.iterdir() if (each / "__init__.py").exists()]
            name = ".".join(package.relative_to(ROOT).parts)
            if inner and name not in ordered and name not in {"heliograph", "region_node.commands"}:
                missing.append(name)
    assert not missing, f"say in contracts.toml which of its packages may import which: {missing}"
