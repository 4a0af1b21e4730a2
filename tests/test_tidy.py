"""What is cheap to watch: every module says what it is, and its tests lie where it does; nothing is a junk drawer,
nothing speaks of the workplace, nothing is left over.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("heliograph", "global_config", "local_meta", "storage", "replicator", "region_node")
OF_NO_PACKAGE = ("docs", "guide", "packaging", "system")
"""Folders of tests that ask about all of the product, or about what surrounds it."""
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")
PATCHES = re.compile(
    r"(?:setattr|object|patch)\([^\"]{0,200}\"(?:[\w.]+\.)?_?[A-Z][A-Z0-9_]+\"|\._?[A-Z][A-Z0-9_]+ \S?= "
)
LOGGED = {"debug", "info", "warning", "error", "exception", "critical"}
LOGS = re.compile(rf"\b(?:log|events)\.(?:{'|'.join(sorted(LOGGED))})\(")
IMPORTS = re.compile(r"^ *(?:from \S+ import (?:\([^)]*\)|.*)|import .*)$", re.MULTILINE)
DRAWERS = {"util", "utils", "helper", "helpers", "common", "misc", "base"}
WORKPLACE = re.compile(
    "|".join((r"/w[o]rk/", r"\bT[O]DO\b", r"\bF[I]XME\b", r"\bX[X]X\b", r"NotImplementedErr[o]r\(\)"))
)


def sources() -> list[Path]:
    return [p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py")) if not p.name.endswith("_pb2.py")]


def test_every_module_says_what_it_is() -> None:
    """A package says it in its `__init__`: its subject, and what does not belong there."""
    silent = [p for p in sources() if not p.read_text().startswith('"""')]
    assert not silent, silent


def test_a_name_has_one_docstring_and_it_is_its_own() -> None:
    """The second of two in a row is of a name that was taken from above it."""
    astray = [str(p) for p in sources() if re.search(r'"""\n *"""', p.read_text())]
    assert not astray, astray


def mirrored() -> list[Path]:
    """Modules below tests/ that lie where a package of the product does, or should."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    return [p for p in files if len(parts := p.relative_to(ROOT / "tests").parts) > 1 and parts[0] not in OF_NO_PACKAGE]


def test_the_folders_of_tests_are_those_of_the_product() -> None:
    """Whoever opens a package finds its tests by the path."""
    folders = {p.parent.relative_to(ROOT / "tests") for p in mirrored()}
    strange = sorted(str(f) for f in folders if not (ROOT / f / "__init__.py").exists())
    assert not strange, strange


def test_what_is_named_like_a_module_lies_where_the_module_does() -> None:
    """`test_X` is of the module X. A name that several packages have may be of any of them."""
    astray = []
    for path in mirrored():
        top, folder = path.relative_to(ROOT / "tests").parts[0], path.parent.relative_to(ROOT / "tests")
        homes = {p.parent.relative_to(ROOT) for p in (ROOT / top).rglob(f"{path.stem.removeprefix('test_')}.py")}
        if path.stem.startswith("test_") and homes and folder not in homes:
            astray.append(f"{path.relative_to(ROOT)}: wanted in {' or '.join(sorted(map(str, homes)))}")
    assert not astray, astray


def test_nothing_is_imported_from_a_module_of_tests() -> None:
    """What several tests need has a module of its own, named by what it is."""
    found = []
    for path in (p for folder in ("tests", "geo_tests", "benchmarks", "tools") for p in (ROOT / folder).rglob("*.py")):
        text = path.read_text()
        if not any("test_" in statement for statement in IMPORTS.findall(text)):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            ours = [name for name in names if name.startswith(("tests.", "geo_tests."))]
            found += [f"{path.relative_to(ROOT)}: {name}" for name in ours if module_of_tests(name)]
    assert not found, found


def module_of_tests(name: str) -> bool:
    """A dotted name whose last part may be a name in a module."""
    parts = name.split(".")
    last = ROOT.joinpath(*parts).with_suffix(".py").exists()
    return any(part.startswith("test_") for part in (parts if last else parts[:-1]))


def test_limits_are_given_where_things_are_made_and_never_patched() -> None:
    """A constant that a test replaces is a hidden input: who has imported it by name, or has it as a default, does not
    hear of it, and everything else of the process does. A smaller value goes in at construction, or as a parameter; a
    limit that is cheap to reach is reached.
    """
    found = Counter[str]()
    for path in (p for folder in ("tests", "geo_tests", "benchmarks") for p in sorted((ROOT / folder).rglob("*.py"))):
        text = path.read_text()
        if PATCHES.search(text):
            found[str(path.relative_to(ROOT))] = sum(map(patches_a_constant, ast.walk(ast.parse(text))))
    assert not +found, "give the value to what is under test"


def patches_a_constant(node: ast.AST) -> bool:
    match node:
        case ast.Call(ast.Name("setattr") | ast.Attribute(_, "setattr" | "object"), [_, ast.Constant(str(name)), *_]):
            return CONSTANT.fullmatch(name) is not None
        case ast.Call(ast.Name("patch") | ast.Attribute(_, "setattr" | "patch"), [ast.Constant(str(name)), *_]):
            return "." in name and CONSTANT.fullmatch(name.rpartition(".")[2]) is not None
        case ast.Attribute(_, name, ast.Store()):
            return CONSTANT.fullmatch(name) is not None
    return False


def test_what_patches_a_constant_is_found() -> None:
    patched = (
        'patch.setattr(module, "_AT_ONCE", 1)',
        'monkeypatch.setattr("a.b.ROWS_MAX", 1)',
        'setattr(module, "MAX", 1)',
        'mock.patch.object(module, "MAX", 1)',
        'mock.patch("a.b.MAX", 1)',
        "module.MAX = 1",
    )
    others = ('patch.setattr(module, "ask", f)', 'patch.setattr("a.MAX.b", f)', "MAX = 1", "print(module.MAX)")
    for text in (*patched, *others):
        assert any(map(patches_a_constant, ast.walk(ast.parse(text)))) == (text in patched), text


def test_no_junk_drawers() -> None:
    assert not [p for p in sources() if p.stem in DRAWERS]


def test_no_range_of_the_metadata_stops_unseen_where_a_page_ends() -> None:
    """A store answers a range with so many keys at most. Whoever wants all of them takes `pages_under`, `rows_under`,
    or goes on in a `while`; whoever wants some says how many.
    """
    found = []
    for path in sources():
        if ".range(" not in (text := path.read_text()):
            continue
        tree = ast.parse(text)
        going_on = {id(node) for loop in ast.walk(tree) if isinstance(loop, ast.While) for node in ast.walk(loop.test)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Await) and isinstance(call := node.value, ast.Call) and id(node) not in going_on:
                asked = isinstance(call.func, ast.Attribute) and call.func.attr == "range"
                if asked and not any(keyword.arg == "limit" for keyword in call.keywords):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found, found


def test_an_error_without_a_text_still_says_something() -> None:
    """An exception is true also where its text is empty, as a time-out's is: `error or "no answer"` says nothing."""
    found = []
    for path in sources():
        text = path.read_text()
        if not any(re.search(rf"\b{name}\s+or\b", text) for name in re.findall(r"\bexcept\b[^:]* as (\w+):", text)):
            continue
        for handler in ast.walk(ast.parse(text)):
            if isinstance(handler, ast.ExceptHandler) and handler.name:
                for node in ast.walk(handler):
                    match node:
                        case ast.BoolOp(ast.Or(), [ast.Name(name), *_]) if name == handler.name:
                            found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found, "say reason_of(error, ...) of heliograph.model.errors"


def test_nothing_speaks_of_the_workplace() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if (
            path.suffix in (".py", ".md", ".toml", ".txt", ".conf", ".xml")
            and path.exists()
            and WORKPLACE.search(path.read_text())
        ):
            found.append(name)
    assert not found, found


def test_the_tests_that_documents_name_are_there() -> None:
    """A rule that says what holds it must not outlive that. (Decisions tell what was; they are not changed.)"""
    files = [p for folder in ("tests", "geo_tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
    there = {p.name for p in files} | {name for p in files for name in re.findall(r"def (test_\w+)", p.read_text())}
    missing = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if page.parent.name != "decisions":
            named = re.findall(r"`(?:[\w/]+/)?(test_\w+(?:\.py)?)`", page.read_text())
            missing += [f"{page.relative_to(ROOT)}: {name}" for name in named if name not in there]
    assert not missing, missing


def test_versions_agree() -> None:
    wanted = re.search(r'version = "([^"]+)"', (ROOT / "pyproject.toml").read_text())
    server = (ROOT / "packaging" / "server" / "pyproject.toml").read_text()
    assert wanted is not None
    assert f'version = "{wanted[1]}"' in server and f"heliograph=={wanted[1]}" in server
    assert f'__version__ = "{wanted[1]}"' in (ROOT / "heliograph" / "__init__.py").read_text()


def test_a_log_line_is_an_event_and_fields() -> None:
    """`log.info("noun.verb", extra={...})`: a sentence with values in it cannot be searched by them."""
    sentences = []
    for path in sources():
        if not LOGS.search(text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(ast.Attribute(ast.Name("log" | "events"), way), args, _) if way in LOGGED:
                    event = args[0] if len(args) == 1 else None
                    if not isinstance(event, ast.Name) and not (
                        isinstance(event, ast.Constant) and re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)+", str(event.value))
                    ):
                        sentences.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not sentences, sentences
