"""One word for each thing: names of classes, words that were given up, the glossary, docstrings that say nothing."""

from __future__ import annotations

import ast
import re
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("heliograph", "global_config", "local_meta", "storage", "replicator", "region_node")
GLOSSARY = ROOT / "docs" / "glossary.md"

TWICE: dict[str, int] = {}
"""Public classes that share a name -> how many they are. It may only shrink."""
GIVEN_UP = {
    "turn": {"region_node/hosts/region_watch.py", "region_node/hosts/host_steps.py"},
    "turns": set[str](),
    "courtesy": set[str](),
    "storey": set[str](),
}
"""Words that no name has, but in these modules: they meant several things."""
GIVEN_UP_IN_CLASSES = {"told", "kept", "carried", "brief", "beside", "lender", "desk", "keeping", "way"}
"""The same of public classes only: as the name of a variable each is plain English."""
COINAGES = (
    *("book", "canary", "company", "debt", "face", "fair share", "gate", "hold", "hole", "keeper", "loop pass", "park"),
    *("planting", "promise", "route", "shadow", "slot", "standing", "tail", "told", "tree", "turn", "verdict", "wheel"),
)
"""Words of this house that names have: each has its line in the glossary."""
OF_MAX = 1
"""Docstrings that begin with "Of ". It may only shrink."""
SHORT_MAX = 15
"""Docstrings of four words and fewer. It may only shrink."""


def sources() -> list[Path]:
    return [p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py")) if not p.name.endswith("_pb2.py")]


@cache
def definitions() -> tuple[Counter[str], list[str]]:
    """Public class -> how many modules define one of that name; the docstrings of the product's modules, classes, and
    functions.
    """
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    classes: Counter[str] = Counter()
    docstrings = []
    for path in sources():
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
        classes.update(n.name for n in nodes if isinstance(n, ast.ClassDef) and not n.name.startswith("_"))
        docstrings += [text for node in nodes if (text := ast.get_docstring(node))]
    return classes, docstrings


@cache
def words(name: str) -> frozenset[str]:
    """The words of an identifier, in lower case."""
    return frozenset(word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name))


def terms() -> list[str]:
    """The glossary's first column, in its order."""
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    return [line.split("|")[1].strip() for line in lines[1:]]


def test_a_public_class_has_its_name_alone() -> None:
    assert {name: count for name, count in definitions()[0].items() if count > 1} == TWICE


def test_words_that_were_given_up_do_not_come_back() -> None:
    found = set()
    for path in sources():
        where = str(path.relative_to(ROOT))
        if not any(words(name) & GIVEN_UP.keys() for name in set(re.findall(r"[A-Za-z_]\w*", path.read_text()))):
            continue
        with path.open() as lines:
            names = {t.string for t in tokenize.generate_tokens(lines.readline) if t.type == tokenize.NAME}
        found |= {(where, n) for n in names for w in words(n) if where not in GIVEN_UP.get(w, {where})}
    assert not found, sorted(found)
    assert not {name for name in definitions()[0] if words(name) & GIVEN_UP_IN_CLASSES}


def test_the_glossary_has_each_term_once_and_in_order() -> None:
    """Case and signs do not count for the order."""
    keys = [re.sub(r"[^a-z0-9 ]", "", term.lower()) for term in terms()]
    assert keys == sorted(keys)
    assert not [key for key, count in Counter(keys).items() if count > 1]


def test_the_glossary_has_the_words_of_this_house() -> None:
    missing = set(COINAGES) - set(terms())
    assert not missing, missing


def test_docstrings_say_something() -> None:
    _, found = definitions()
    assert sum(text.startswith("Of ") for text in found) <= OF_MAX
    assert sum(len(text.split()) <= 4 for text in found) <= SHORT_MAX
