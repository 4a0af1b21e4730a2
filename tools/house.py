"""`make house`: the figures of the product's code, a line each, by its own reading of the source.

Is: the one counting code of the ceilings of tests/test_sizes.py and tests/test_contracts.py. Isn't: a ceiling.
Imports count wherever they stand: at the top, inside functions, and for types alone.
Code is what is neither blank, nor a comment, nor the docstring of a module, a class, or a function.
An attribute is *set later* where `x.y = ...` stands outside of the module of each class of ours that has an attribute
`y`, `x` is not `self` or `cls`, and it was not made there: in the same function its first name (`x` of `x.z.y`) was not
given by a call whose name begins in upper case, nor is it a part of what was. A parameter whose annotation names no
class of ours is foreign (protobuf's, say), and does not count; where it names one of ours, that one has `y`, itself or
by a base.
A setting is a field of a frozen dataclass named `...Settings`, sections left out; a test sets it where a file below
tests/, geo_tests/, or benchmarks/ has its name as a keyword of a call, as a key (`{"cache_mb": 1}`), or in a variable
(`HELIOGRAPH_BROKER__CACHE_MB`).
Identical stretches are not counted: no library of requirements/lock.txt finds them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("heliograph", "global_config", "local_meta", "storage", "replicator", "region_node")
TESTS = ("tests", "geo_tests", "benchmarks")
METHODS = 30
"""A class with more, those of its bases counted, is large."""
PARAMETERS = 8
"""A constructor with more is large; fields of a dataclass do not count: they have names at every call."""
LINES = 60
"""A function with more is long."""
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


class Class(NamedTuple):
    """A class as it is written: methods and attributes are names, bases are last names, of whatever class."""

    node: ast.ClassDef
    methods: frozenset[str]
    attributes: frozenset[str]
    bases: tuple[str, ...]
    protocol: bool
    module: str


@dataclass(slots=True)
class Module:
    name: str
    code: int = 0
    imports: set[str] = field(default_factory=set)
    """Dotted names, of modules or of what is in them."""
    classes: list[tuple[str, Class]] = field(default_factory=list)
    long_functions: list[str] = field(default_factory=list)
    stores: list[tuple[ast.Attribute, ast.AST | None]] = field(default_factory=list)
    """Attributes that are assigned to, apart from those of `self`; the function around each."""


def name_of(node: ast.AST | None) -> str:
    """Returns the last name: of `Base`, `module.Base`, `Base[T]`; "" where there is none."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
        case ast.Subscript(value):
            return name_of(value)
    return ""


def read(source: str, name: str = "m", package: bool = False) -> Module:
    """Reads one module, nested classes and functions too. package: it is an `__init__`."""
    made, quiet = Module(name), set[int]()
    above = name if package else name.rpartition(".")[0]
    waiting: list[tuple[ast.AST, ast.AST | None]] = [(ast.parse(source), None)]
    while waiting:
        node, function = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | FUNCTIONS):
            match node.body:
                case [ast.Expr(ast.Constant(str())) as text, *_]:
                    quiet.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
        match node:
            case ast.Import(names):
                made.imports.update(alias.name for alias in names)
            case ast.ImportFrom(origin, names, level):
                parts = above.split(".")[: len(above.split(".")) - level + 1] if level else []
                base = ".".join([*parts, *([origin] if origin else [])])
                made.imports.update(f"{base}.{alias.name}" for alias in names)
            case ast.ClassDef():
                made.classes.append((node.name, _class(node, name)))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if (node.end_lineno or node.lineno) - node.lineno + 1 > LINES:
                    made.long_functions.append(f"{name}:{node.lineno} {node.name}")
                function = node
            case ast.Attribute(value, _, ast.Store()) if name_of(value) not in ("self", "cls"):
                made.stores.append((node, function))
        waiting += [(child, function) for child in ast.iter_child_nodes(node)]
    made.code = sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in quiet
        for number, line in enumerate(source.splitlines(), 1)
    )
    return made


def _class(node: ast.ClassDef, module: str) -> Class:
    methods = [n for n in node.body if isinstance(n, FUNCTIONS)]
    attributes = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    for method in methods:
        for n in ast.walk(method):
            if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and name_of(n.value) == "self":
                attributes.add(n.attr)
    bases = tuple(name_of(base) for base in node.bases)
    names = frozenset(method.name for method in methods)
    return Class(node, names, frozenset(attributes), bases, "Protocol" in bases, module)


def circles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Returns the strongly connected parts of two modules and more, each sorted, the list sorted (Tarjan's
    algorithm).
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        path.append(module)
        for other in imports.get(module, ()):
            if other not in order:
                visit(other)
            if other in path:
                low[module] = min(low[module], low[other])
        if low[module] == order[module]:
            at = path.index(module)
            if len(path) - at > 1:
                found.append(sorted(path[at:]))
            del path[at:]

    for module in sorted(imports):
        if module not in order:
            visit(module)
    return sorted(found)


class House:
    """The figures of some modules; each is a list, or a table, of what is counted."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = {module.name: module for module in modules}

    @cached_property
    def classes(self) -> dict[str, Class]:
        """By name: a public class has its name alone (tests/test_words.py), of private ones the largest counts."""
        found: dict[str, Class] = {}
        for name, one in (each for module in self.modules.values() for each in module.classes):
            if name not in found or len(one.methods) > len(found[name].methods):
                found[name] = one
        return found

    def methods_of(self, name: str) -> frozenset[str]:
        one = self.classes.get(name)
        if one is None or one.protocol:
            return frozenset()
        return one.methods.union(*(self.methods_of(base) for base in one.bases if base != name))

    def has(self, name: str, attribute: str) -> bool:
        """Returns whether the class, or a base of it, has the attribute."""
        one = self.classes.get(name)
        return one is not None and (attribute in one.attributes or any(self.has(b, attribute) for b in one.bases))

    def imports(self) -> dict[str, list[str]]:
        """By module, those of ours that it imports; a package's own modules that its `__init__` names are none of
        a circle, as they cannot be without it.
        """
        found: dict[str, list[str]] = {}
        for name, module in self.modules.items():
            others = {self._module(dotted) for dotted in module.imports} - {"", name}
            found[name] = sorted(other for other in others if not name.startswith(f"{other}."))
        return found

    def _module(self, dotted: str) -> str:
        while dotted and dotted not in self.modules:
            dotted = dotted.rpartition(".")[0]
        return dotted

    def circles(self) -> list[list[str]]:
        return circles(self.imports())

    def sizes(self) -> dict[str, int]:
        """By class, protocols left out, how many methods it has, those of its bases counted with them."""
        return {name: len(self.methods_of(name)) for name, one in self.classes.items() if not one.protocol}

    def parameters(self) -> dict[str, int]:
        """By class, how many parameters its `__init__` takes, `self` left out."""
        return {name: _parameters(one) for name, one in self.classes.items()}

    def lone_bases(self) -> list[str]:
        """Returns the classes, protocols left out, that exactly one other class is made from."""
        made: dict[str, set[str]] = defaultdict(set)
        for name, one in self.classes.items():
            for base in one.bases:
                if base in self.classes and not self.classes[base].protocol and base != name:
                    made[base].add(name)
        return sorted(base for base, below in made.items() if len(below) == 1)

    def long_functions(self) -> list[str]:
        return sorted(place for module in self.modules.values() for place in module.long_functions)

    def set_later(self) -> list[str]:
        """Returns `module:line x.y` of each attribute that is set later."""
        owners: dict[str, set[str]] = defaultdict(set)
        for module in self.modules.values():
            for _, one in module.classes:
                for attribute in one.attributes:
                    owners[attribute].add(module.name)
        return sorted(
            f"{module.name}:{store.lineno} {ast.unparse(store)}"
            for module in self.modules.values()
            for store, function in module.stores
            if owners.get(store.attr) and module.name not in owners[store.attr] and self._from_outside(store, function)
        )

    def _from_outside(self, store: ast.Attribute, function: ast.AST | None) -> bool:
        name = _first(store.value)
        if not name or function is None:
            return True
        if isinstance(store.value, ast.Name):
            for node in ast.walk(function):
                if isinstance(node, ast.arg) and node.arg == name and node.annotation is not None:
                    kinds = re.findall(r"\w+", ast.unparse(node.annotation))
                    return any(self.has(kind, store.attr) for kind in kinds)
        return not _made_in(function, name)

    def settings(self) -> dict[str, list[str]]:
        """By class of settings, its fields."""
        return {
            name: [
                n.target.id
                for n in one.node.body
                if isinstance(n, ast.AnnAssign)
                and isinstance(n.target, ast.Name)
                and "Settings" not in ast.unparse(n.annotation)
            ]
            for name, one in sorted(self.classes.items())
            if name.endswith("Settings") and any("frozen=True" in ast.unparse(d) for d in one.node.decorator_list)
        }

    def unset_settings(self, words: frozenset[str]) -> list[str]:
        """Returns `Class.field` of each setting whose name is none of `words`, those that tests set."""
        return [f"{kind}.{name}" for kind, names in self.settings().items() for name in names if name not in words]


def _first(node: ast.AST) -> str:
    """Returns the first name of a chain: `x` of `x.z[0].y`; "" where a call is in it."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _made_in(function: ast.AST, name: str) -> bool:
    """Returns whether an assignment in the function makes what `name` names: `Class(...)`, `Class.of(...)`, or a part
    of such a one.
    """
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(name_of(target) == name for target in node.targets):
            match node.value:
                case ast.Call(called):
                    parts = (n for n in ast.walk(called) if isinstance(n, ast.Name | ast.Attribute))
                    if any(name_of(n).lstrip("_")[:1].isupper() for n in parts):
                        return True
                case ast.Attribute() as part if (first := _first(part)) not in ("", "self", name):
                    return _made_in(function, first)
    return False


def _parameters(one: Class) -> int:
    for node in one.node.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs) - 1
    return 0


def sources() -> Iterator[Path]:
    """The product's modules; what a compiler of protobuf wrote is none."""
    for package in PACKAGES:
        yield from (p for p in sorted((ROOT / package).rglob("*.py")) if not p.name.endswith("_pb2.py"))


@cache
def house() -> House:
    """The figures of this checkout; read once."""
    found = []
    for path in sources():
        parts = path.relative_to(ROOT).with_suffix("").parts
        package = parts[-1] == "__init__"
        found.append(read(path.read_text(), ".".join(parts[:-1] if package else parts), package))
    return House(found)


_SET = re.compile(r"\b(\w+)=(?!=)|[\"'](\w+)[\"'](?=:|\] =)|\bHELIOGRAPH_(?:[A-Z0-9_]+?__)?([A-Z0-9_]+)\b")


def words_that_tests_set(texts: Iterable[str]) -> frozenset[str]:
    found = (name for text in texts for names in _SET.findall(text) for name in names if name)
    return frozenset(name.rpartition("__")[2].lower() if name.isupper() else name for name in found)


@cache
def words_set() -> frozenset[str]:
    return words_that_tests_set(p.read_text() for folder in TESTS for p in sorted((ROOT / folder).rglob("*.py")))


def main() -> None:
    here = house()
    rings, sizes = here.circles(), here.sizes()
    large = {name: size for name, size in sizes.items() if size > METHODS}
    wide = {name: count for name, count in here.parameters().items() if count > PARAMETERS}
    later = here.set_later()
    names = {place.rpartition(".")[2] for place in later}
    figures: dict[str, tuple[int, Iterable[str]]] = {
        "files": (len(here.modules), ()),
        "lines of code": (sum(module.code for module in here.modules.values()), ()),
        "circles of imports": (len(rings), (" ".join(ring) for ring in rings)),
        "modules in circles": (sum(map(len, rings)), ()),
        f"classes above {METHODS} methods": (len(large), (f"{name} {size}" for name, size in sorted(large.items()))),
        "methods of the largest class": (max(sizes.values()), ()),
        f"constructors above {PARAMETERS} parameters": (len(wide), (f"{name} {n}" for name, n in sorted(wide.items()))),
        "bases with one subclass": (len(here.lone_bases()), here.lone_bases()),
        f"functions above {LINES} lines": (len(here.long_functions()), here.long_functions()),
        "attributes set later": (len(later), later),
        "names of attributes set later": (len(names), ()),
        "settings": (sum(map(len, here.settings().values())), ()),
        "settings that no test sets": (len(unset := here.unset_settings(words_set())), unset),
    }
    for figure, (count, which) in figures.items():
        print(f"{figure:34}{count:8,}")
        if "--all" in sys.argv:
            for one in which:
                print(f"    {one}")


if __name__ == "__main__":
    main()
