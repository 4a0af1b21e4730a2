"""`make quick`: what a change most likely breaks, in a minute and a half: lint, types, contracts, the nearest tests.

Is: the choice of tests, by path: those of the modules that the working tree changed, those that import such a module,
the units that matter most, those of the modules' direct importers, and those that import one of these; the nearest
first, until the time is up.
Isn't: `make test`, which runs everything. What was left out is said.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import IO

import grimp

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PACKAGES = ("heliograph", "global_config", "local_meta", "storage", "replicator", "region_node")
SECONDS = 60.0
"""So long tests are begun. With lint before them and types beside them, all is done within 90 s on two quiet cores."""
MOST = (
    *("tests/test_tidy.py", "tests/test_words.py", "tests/test_contracts.py"),
    *("tests/heliograph/wire/test_run.py", "tests/heliograph/raft/test_core.py"),
    *("tests/storage/ledger/writing/test_ledger_append.py", "tests/storage/ledger/recovery/test_recovery_rules.py"),
    *("tests/storage/bookie/journal/test_journal.py", "tests/storage/managed_ledger/cursors/test_cursor.py"),
    *("tests/replicator/log/test_replicated_log.py", "tests/replicator/dedup/test_aliases.py"),
    *("tests/region_node/placement/ownership/test_ownership_core.py", "tests/region_node/topics/test_producers.py"),
)
"""The units that matter most: what an acknowledged message hangs on. They run whatever was changed."""


def changed_files(since: str) -> list[str]:
    """Paths that differ from the commit `since`, and untracked ones; deleted ones are named, too."""
    tracked = _git("diff", "--name-only", "-z", since)
    return sorted({*tracked, *_git("ls-files", "--others", "--exclude-standard", "-z")})


def module_of(path: str) -> str | None:
    """The dotted name of a module of the product; None: the file is none."""
    if not path.endswith(".py") or path.partition("/")[0] not in PACKAGES:
        return None
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def tests_of(module: str, root: Path = ROOT) -> list[str]:
    """The tests of one module, by path: those of its name, else all of the nearest folder below tests/ that has any."""
    package, _, name = module.rpartition(".")
    folder = root / "tests" / package.replace(".", "/")
    found = sorted({*folder.glob(f"test_{name}.py"), *folder.glob(f"test_{name}_*.py")})
    while not found and folder != root / "tests":
        found, folder = sorted(folder.glob("test_*.py")), folder.parent
    return [str(path.relative_to(root)) for path in found]


def importing_tests(modules: set[str], root: Path = ROOT) -> list[str]:
    """Test files that import one of these modules, or something from it."""
    found = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        if "system" not in path.parts and modules & _imports(path):
            found.append(str(path.relative_to(root)))
    return found


def choice(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Test files, the nearest to the change first, each once."""
    changed = list(changed)
    modules = {module for path in changed if (module := module_of(path)) is not None}
    chosen = [
        path for path in changed if path.startswith(("tests/", "geo_tests/")) and Path(path).name.startswith("test_")
    ]
    for module in sorted(modules):
        chosen += tests_of(module, root)
    chosen += importing_tests(modules, root)
    chosen += MOST
    importers = _importers(modules)
    for importer in sorted(importers):
        chosen += tests_of(importer, root)
    chosen += importing_tests(importers, root)
    return [path for path in dict.fromkeys(chosen) if (root / path).exists()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make quick", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--since", default="HEAD", help="the commit that the working tree is compared with")
    parser.add_argument("--of", metavar="PATH", help="only list the tests of this module, the nearest first")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="so long tests are begun")
    given = parser.parse_args()
    if given.of is not None:
        return _list(given.of)
    begun = time.monotonic()
    failed = [title for title, command in _LINT.items() if not _run(title, command)]
    beside = {title: _start(command) for title, command in _BESIDE.items()}
    files = choice(changed_files(given.since))
    print(f"== {len(files)} files of tests", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        left = Path(scratch) / "left"
        until = str(time.monotonic() + given.seconds)
        environment = {"QUICK_UNTIL": until, "QUICK_LEFT": str(left), "PYTHONPATH": str(ROOT / "tools")}
        command = [*_PYTEST, "-p", "quick_budget", *files]
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment, "PYTHONHASHSEED": "0"}).returncode
        if left.exists():
            print(f"the time was up before {left.stat().st_size} tests; `make test` runs all")
    if code not in (0, 5):
        failed.append("tests")
    for title, (process, output) in beside.items():
        process.wait()
        output.seek(0)
        if process.returncode:
            failed.append(title)
            print(f"== {title}\n{output.read().decode(errors='replace')}", flush=True)
        output.close()
    took = time.monotonic() - begun
    print(f"make quick: {'failed: ' + ', '.join(failed) if failed else 'nothing found'} ({took:.0f} s)")
    return 1 if failed else 0


def of_module(module: str, root: Path = ROOT) -> dict[str, list[str]]:
    """How near -> test files: those of its name or folder, those that import it, those of its direct importers."""
    importers = _importers({module})
    found = {
        "of its name, or of its folder": tests_of(module, root),
        "that import it": importing_tests({module}, root),
        "of the modules that import it": [path for one in sorted(importers) for path in tests_of(one, root)],
    }
    seen: set[str] = set()
    for how, paths in found.items():
        found[how] = [path for path in dict.fromkeys(paths) if path not in seen]
        seen.update(paths)
    return found


def _list(path: str) -> int:
    module = module_of(path.removeprefix(f"{ROOT}/"))
    if module is None or not (ROOT / path).exists():
        print(f"{path} is no module of the product: name a file below {', '.join(PACKAGES)}")
        return 2
    for how, paths in of_module(module).items():
        print(f"== tests {how}", *paths, sep="\n")
    return 0


def _importers(modules: set[str]) -> set[str]:
    """The modules of the product that import one of these, types and functions included."""
    if not modules:
        return set()
    graph = grimp.build_graph(
        *PACKAGES, cache_dir=str(ROOT / ".import_linter_cache"), exclude_type_checking_imports=False
    )
    there = modules & graph.modules
    return {importer for module in there for importer in graph.find_modules_that_directly_import(module)} - modules


@cache
def _imports(path: Path) -> set[str]:
    """The dotted names that a test file imports: of modules, and of what is in them."""
    named: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return named


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in done.stdout.split("\0") if path]


def _run(title: str, command: list[str]) -> bool:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(f"== {title}\n{done.stdout}", flush=True)
    return done.returncode == 0


def _start(command: list[str]) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed where it was read
    return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT), output


_LINT = {"layout": [str(BIN / "ruff"), "format", "--check", "-q", "."], "lint": [str(BIN / "ruff"), "check", "-q", "."]}
_BESIDE = {"types": [str(BIN / "mypy")], "contracts": [str(BIN / "lint-imports"), "--config", "contracts.toml"]}
_PYTEST = [
    *(sys.executable, "-m", "pytest", "-n", "2", "-q", "--tb=short", "--no-header", "--maxfail", "20"),
    *("-m", "not wan and not system and not long"),
]


if __name__ == "__main__":
    sys.exit(main())
