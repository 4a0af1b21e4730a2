"""Sizes that may only shrink: classes with all their bases, what a constructor takes, bases with one subclass, folders.

A ceiling is today's figure: whoever makes one smaller lowers it here, nobody raises it.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("heliograph", "global_config", "local_meta", "storage", "replicator", "region_node")
METHODS = 30
LARGE_CLASSES_MAX = 28
"""Classes of more than METHODS methods, those of their bases counted with them."""
LARGEST_CLASS_MAX = 104
PARAMETERS = 8
LARGE_CONSTRUCTORS_MAX = 23
"""Constructors of more than PARAMETERS parameters."""
LARGEST_CONSTRUCTOR_MAX = 18
LONE_BASES_MAX = 27
"""Classes, protocols left out, that exactly one other class is made from."""
MODULES_MAX = 14
"""In one folder of the product."""
NO_TEST_OF_ITS_NAME_MAX = 334
"""Modules of the product whose tests are those of their folder: `make quick OF=PATH` lists them."""


class Class(NamedTuple):
    """A class as it is written: methods are names, bases are names of classes of ours, protocols left out."""

    node: ast.ClassDef
    methods: frozenset[str]
    bases: tuple[str, ...]
    protocol: bool


def name_of(node: ast.expr) -> str:
    """The last name of a base: `Base`, `module.Base`, `Base[T]`."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
        case ast.Subscript(value):
            return name_of(value)
    return ""


def read(source: str) -> Iterator[tuple[str, Class]]:
    """The classes of one module, nested ones too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            methods = frozenset(n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
            bases = tuple(name_of(base) for base in node.bases)
            yield node.name, Class(node, methods, bases, "Protocol" in bases)


@cache
def classes() -> dict[str, Class]:
    """By name: a public class has its name alone (tests/test_words.py), of private ones the largest counts."""
    found: dict[str, Class] = {}
    for path in (p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py"))):
        for name, one in read(path.read_text()):
            if name not in found or len(one.methods) > len(found[name].methods):
                found[name] = one
    return found


def methods_of(name: str, known: dict[str, Class]) -> frozenset[str]:
    one = known.get(name)
    if one is None or one.protocol:
        return frozenset()
    return one.methods.union(*(methods_of(base, known) for base in one.bases if base != name))


def parameters_of(one: Class) -> int:
    """What `__init__` takes, `self` left out; fields of a dataclass do not count: they have names at every call."""
    for node in one.node.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs) - 1
    return 0


def test_classes_become_smaller() -> None:
    sizes = {name: len(methods_of(name, classes())) for name, one in classes().items() if not one.protocol}
    large = {name: size for name, size in sizes.items() if size > METHODS}
    assert len(large) <= LARGE_CLASSES_MAX, f"give a class parts, instead of more methods or bases: {large}"
    assert max(sizes.values()) <= LARGEST_CLASS_MAX, max(sizes, key=lambda name: sizes[name])
    assert (len(large), max(sizes.values())) == (LARGE_CLASSES_MAX, LARGEST_CLASS_MAX), "lower the ceilings to this"


def test_constructors_take_less() -> None:
    counts = {name: parameters_of(one) for name, one in classes().items()}
    large = {name: count for name, count in counts.items() if count > PARAMETERS}
    assert len(large) <= LARGE_CONSTRUCTORS_MAX, f"put what belongs together into one value: {large}"
    assert max(counts.values()) <= LARGEST_CONSTRUCTOR_MAX, max(counts, key=lambda name: counts[name])
    assert (len(large), max(counts.values())) == (LARGE_CONSTRUCTORS_MAX, LARGEST_CONSTRUCTOR_MAX), "lower the ceilings"


def test_bases_with_one_subclass_become_fewer() -> None:
    made: dict[str, Counter[str]] = defaultdict(Counter)
    for name, one in classes().items():
        for base in one.bases:
            if base in classes() and not classes()[base].protocol and base != name:
                made[base][name] += 1
    lone = sorted(base for base, subclasses in made.items() if len(subclasses) == 1)
    assert len(lone) <= LONE_BASES_MAX, f"a class is not cut into files by inheritance: {lone}"
    assert len(lone) == LONE_BASES_MAX, f"there are {len(lone)} now: lower the ceiling"


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


def test_what_a_class_inherits_counts() -> None:
    known = dict(
        read("class A:\n def a(self): ...\n def b(self): ...\nclass B(A):\n def b(self): ...\n def c(self): ...\n")
    )
    assert methods_of("B", known) == {"a", "b", "c"}
    made = dict(read("class C:\n def __init__(self, a, /, b, *, c): ...\n"))
    assert parameters_of(made["C"]) == 3
