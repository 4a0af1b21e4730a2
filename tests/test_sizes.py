"""Sizes that may only shrink: classes with all their bases, what a constructor takes, bases with one subclass, circles,
long functions, attributes that are set later, folders. What each of them counts: tools/house.py.

A ceiling is today's figure: whoever makes one smaller lowers it here, nobody raises it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from tools.house import METHODS, PACKAGES, PARAMETERS, house, words_set

ROOT = Path(__file__).resolve().parents[1]
LARGE_CLASSES_MAX = 28
LARGEST_CLASS_MAX = 104
LARGE_CONSTRUCTORS_MAX = 22
LARGEST_CONSTRUCTOR_MAX = 18
LONE_BASES_MAX = 27
CIRCLES_MAX = 4
MODULES_IN_CIRCLES_MAX = 33
LONG_FUNCTIONS_MAX = 26
SET_LATER_MAX = 369
UNSET_SETTINGS_MAX = 8
MODULES_MAX = 14
"""In one folder of the product."""
NO_TEST_OF_ITS_NAME_MAX = 317
"""Modules of the product whose tests are those of their folder: `make quick OF=PATH` lists them."""


def test_classes_become_smaller() -> None:
    sizes = house().sizes()
    large = {name: size for name, size in sizes.items() if size > METHODS}
    assert len(large) <= LARGE_CLASSES_MAX, f"give a class parts, instead of more methods or bases: {large}"
    assert max(sizes.values()) <= LARGEST_CLASS_MAX, max(sizes, key=lambda name: sizes[name])
    assert (len(large), max(sizes.values())) == (LARGE_CLASSES_MAX, LARGEST_CLASS_MAX), "lower the ceilings to this"


def test_constructors_take_less() -> None:
    counts = house().parameters()
    large = {name: count for name, count in counts.items() if count > PARAMETERS}
    assert len(large) <= LARGE_CONSTRUCTORS_MAX, f"put what belongs together into one value: {large}"
    assert max(counts.values()) <= LARGEST_CONSTRUCTOR_MAX, max(counts, key=lambda name: counts[name])
    assert (len(large), max(counts.values())) == (LARGE_CONSTRUCTORS_MAX, LARGEST_CONSTRUCTOR_MAX), "lower the ceilings"


def test_bases_with_one_subclass_become_fewer() -> None:
    lone = house().lone_bases()
    assert len(lone) <= LONE_BASES_MAX, f"a class is not cut into files by inheritance: {lone}"
    assert len(lone) == LONE_BASES_MAX, f"there are {len(lone)} now: lower the ceiling"


def test_circles_become_fewer() -> None:
    """Which they are: contracts.toml."""
    there = house().circles()
    figures = (len(there), sum(map(len, there)))
    most = (CIRCLES_MAX, MODULES_IN_CIRCLES_MAX)
    assert figures[0] <= most[0] and figures[1] <= most[1], f"move what both need to a third module: {there}"
    assert figures == most, f"there are {figures} now: lower the ceilings"


def test_long_functions_become_fewer() -> None:
    found = house().long_functions()
    assert len(found) <= LONG_FUNCTIONS_MAX, f"give the parts of a function names: {found}"
    assert len(found) == LONG_FUNCTIONS_MAX, f"there are {len(found)} now: lower the ceiling"


def test_attributes_that_are_set_later_become_fewer() -> None:
    found = house().set_later()
    assert len(found) <= SET_LATER_MAX, "give it at construction, or let a method say what happens: make house ALL=1"
    assert len(found) == SET_LATER_MAX, f"there are {len(found)} now: lower the ceiling"


def test_settings_that_no_test_sets_become_fewer() -> None:
    found = house().unset_settings(words_set())
    assert len(found) <= UNSET_SETTINGS_MAX, f"show by a test what a setting does, or take it away: {found}"
    assert len(found) == UNSET_SETTINGS_MAX, f"there are {len(found)} now: lower the ceiling"


def test_folders_are_read_at_a_glance() -> None:
    folders = Counter(p.parent for top in PACKAGES for p in (ROOT / top).rglob("*.py") if p.name != "__init__.py")
    assert {str(folder.relative_to(ROOT)): n for folder, n in folders.items() if n > MODULES_MAX} == {}


def test_more_modules_have_a_test_of_their_name() -> None:
    modules = [p.relative_to(ROOT) for top in PACKAGES for p in (ROOT / top).rglob("*.py") if "__" not in p.name]
    tests = {p.relative_to(ROOT / "tests") for p in (ROOT / "tests").rglob("test_*.py")}
    by_folder: dict[Path, list[str]] = defaultdict(list)
    for test in tests:
        by_folder[test.parent].append(test.stem)
    names = (f"test_{module.stem}" for module in modules)
    nameless = [
        module
        for module, name in zip(modules, names, strict=True)
        if not any(test == name or test.startswith(f"{name}_") for test in by_folder[module.parent])
    ]
    assert len(nameless) <= NO_TEST_OF_ITS_NAME_MAX, f"a test is named by its module: {sorted(map(str, nameless))}"
    assert len(nameless) == NO_TEST_OF_ITS_NAME_MAX, f"there are {len(nameless)} now: lower the ceiling"
