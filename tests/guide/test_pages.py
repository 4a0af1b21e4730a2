"""Every page of the guide is run by a test, or says why not; and every command, path, and option that it names is
there.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from heliograph.cli import main
from heliograph.spark import commands as spark_commands
from region_node.commands import entry as server_commands
from region_node.faces.admin.server.admin_server import ROUTES
from tests.guide.page import DOCS, Page, pages
from tests.guide.shell import pattern

ROOT = DOCS.parent
NOT_RUN = {
    "console.md": "it has no commands: its pages are opened, and its acts done, in a browser by "
    "tests/system/test_console.py",
    "chaos.md": "its command breaks an instance for minutes: its scenarios, and their verdicts, are run by "
    "geo_tests/wan/test_chaos_run.py",
    "deletion.md": "it is one table, of what each act does by each face: each cell names its test; stock clients "
    "delete in geo_tests/wan/test_stock_deletion.py",
    "disks.md": "it is one table, which is walked row by row, its commands given, by tests/system/test_lost_disks.py",
    "alerts.md": "it is a runbook, a section for each alert, with a command here and there: they are fired and cleared by "  # noqa: E501
    "tests/system/test_alerts.py",
    "one-address.md": "it is configurations of other programs, and programs: they are taken out of it, and run, by "
    "tests/system/test_one_address.py",
    "witness.md": "it is two tables: what they say is done by geo_tests/wan/test_witness.py, on virtual time by "
    "tests/global_config/voters/test_witness.py",
    "forced-quorum.md": "it is three tables: what they say is done by geo_tests/wan/test_forced_quorum.py, on virtual "
    "time by tests/global_config/voters/test_forced_quorum.py",
}
SPAN = re.compile(r"`([^`\n]+)`")
METHOD = re.compile(r"(GET|PUT|POST|DELETE) (/(?:admin|heliograph|console)/[^\s`?]*)")


def readers() -> dict[str, list[str]]:
    """Page -> the test files that say `Page.read(PAGE)`."""
    found: dict[str, list[str]] = {}
    for path in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("geo_tests/**/*.py")]:
        if "Page.read(" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "Page.read"
                and isinstance(node.args[0], ast.Constant)
            ):
                found.setdefault(str(node.args[0].value), []).append(str(path.relative_to(ROOT)))
    return found


def test_every_page_is_run_or_says_why_not() -> None:
    read = readers()
    assert sorted(pages()) == sorted({*read, *NOT_RUN})
    assert not set(NOT_RUN) & set(read)
    for name in read:
        assert any(not block.not_run for block in Page.read(name).blocks), (
            f"{name} has no command that anybody could run"
        )
    for name in NOT_RUN:
        assert not Page.read(name).blocks, f"{name} has commands by now: read it in a test"


@pytest.mark.parametrize("name", list(pages()))
def test_blocks_of_commands_have_their_form(name: str) -> None:
    page = Page.read(name)
    shown = re.findall(r"^ *```(\w*)\n(.*?)^ *```", pages()[name].read_text(), re.MULTILINE | re.DOTALL)
    hidden = [
        body
        for kind, body in shown
        if kind != "console" and re.search(r"^ *\$? ?(heliograph|curl|kafka-\w+\.sh|tofu) ", body, re.MULTILINE)
    ]
    assert not hidden, f"{page.name}: commands in a block that is no ```console"


# -- what it names is there --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program() -> Any:
    """Its commands as typer has them, which has its own copy of click."""
    for area in (server_commands, spark_commands):
        area.register(main.app)
    return typer.main.get_command(main.app)


def named(name: str) -> Iterator[str]:
    """What the page says of `heliograph`, in blocks and between words."""
    text = pages()[name].read_text()
    yield from (" ".join(command.text.split()) for block in Page.read(name).blocks for command in block.commands)
    yield from (span.replace("\\|", "|") for span in SPAN.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)))


def faults(program: Any, said: str) -> Iterator[str]:
    """Of one command line: what of it is not there."""
    try:
        words = shlex.split(said, comments=True)
    except ValueError:
        words = said.split()
    for at in [at for at, word in enumerate(words) if word == "heliograph" or word.endswith("$(heliograph")]:
        command = program
        for word in words[at + 1 :]:
            word = word.rstrip(")")
            if word in ("|", "&&", ";", "&", ">", ">>", "--"):
                break
            if hasattr(command, "commands") and not word.startswith("-"):
                if not re.fullmatch(r"[a-z][a-z-]*", word):
                    break  # a placeholder: any of them
                if word not in command.commands:
                    yield f"{said}: {command.name} has no command {word}"
                    break
                command = command.commands[word]
            elif word.startswith("--"):
                options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {
                    "--help",
                    "--install-completion",
                }
                if (option := word.partition("=")[0].rstrip("…,;:.")) not in options:
                    yield f"{said}: {command.name} has no option {option}"


@pytest.mark.parametrize("name", list(pages()))
def test_every_command_and_option_is_there(program: Any, name: str) -> None:
    assert [fault for said in named(name) if "heliograph" in said for fault in faults(program, said)] == []


def test_what_is_not_there_is_found(program: Any) -> None:
    assert list(faults(program, "heliograph keys list shop --json")) == []
    assert list(faults(program, "ROOT=$(heliograph tokens creat -s root)")) == [
        "ROOT=$(heliograph tokens creat -s root): tokens has no command creat"
    ]
    assert list(faults(program, "heliograph keys list --jsn | cat")) == [
        "heliograph keys list --jsn | cat: list has no option --jsn"
    ]


OPEN = re.compile(r"[A-Z][A-Z0-9:_-]*|\{\w+\}|.*[=…].*")
"""A part of a path that stands for any: a word in capitals, or `{x}`."""


def is_route(method: str, path: str) -> bool:
    """`…` stands for one part or several."""
    return any(at == method and _fits(path.rstrip("/").split("/"), route.split("/")) for at, route, *_ in ROUTES)


def _fits(given: list[str], wanted: list[str]) -> bool:
    if not given or not wanted:
        return not given and not wanted
    if given[0] in ("…", "..."):
        return any(_fits(given[1:], wanted[skip:]) for skip in range(1, len(wanted) + 1))
    one = wanted[0].startswith("{") or given[0] == wanted[0] or OPEN.fullmatch(given[0]) is not None
    if wanted[0].startswith("{") and ":" in wanted[0] and _fits(given[1:], wanted):
        return True
    return one and _fits(given[1:], wanted[1:])


@pytest.mark.parametrize("name", list(pages()))
def test_every_path_of_the_admin_interface_is_there(name: str) -> None:
    asked = {match for span in named(name) for match in METHOD.findall(span)}
    assert [f"{method} {path}" for method, path in sorted(asked) if not is_route(method, path)] == []


def test_a_path_that_is_not_there_is_found() -> None:
    assert is_route("GET", "/heliograph/v1/topics/…/durability") and is_route(
        "POST", "/heliograph/v1/bookies/ID/decommission"
    )
    assert not is_route("GET", "/heliograph/v2/topics/…/durability") and not is_route(
        "GET", "/heliograph/v1/bookies/ID/decommissions"
    )


# -- the form ----------------------------------------------------------------------------------------------------------

EXAMPLE = """# A page
## First
```console
$ one "two
three" \\
four   # a comment with 'one quote
said …
$ five
```
```toml
[no.command]
```
## Second
<!-- guide: not run: there is no such machine here -->
```console
$ six
```
1. In a list
   <!-- guide: stays -->
   ```console
   $ seven
   $ eight
   ready
   ```
"""


def test_a_page_is_cut_into_commands() -> None:
    page = Page.parse("a.md", EXAMPLE.replace("'", ""))
    first, second, third = page.blocks
    assert [command.text for command in first.commands] == [
        'one "two\nthree" \\\nfour   # a comment with one quote',
        "five",
    ]
    assert first.commands[0].shown == ("said …",) and not first.commands[1].shown
    assert second.not_run == "there is no such machine here" and page.headings == ["First", "Second"]
    assert [(command.text, command.stays) for command in third.commands] == [("seven", False), ("eight", True)]
    assert [command.text for command in page.commands("Second")] == ["seven", "eight"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```console\nno prompt\n```", "begins with no command"),
        ("```console\n$ one 'two\n```", "has no end"),
        ("```console\n$ one", "has no end"),
        ("<!-- guide: not run: no -->\n```console\n$ one\n```", "with a reason"),
        ("<!-- guide: maybe -->\n```console\n$ one\n```", "neither"),
    ],
)
def test_a_wrong_form_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Page.parse("a.md", text)


def test_what_is_shown_is_compared() -> None:
    assert pattern(["a  … c", "…", "end"]).fullmatch("a b b c\nmore\nmore\nend\n")
    assert pattern(["…", "end"]).fullmatch("end\n")
    assert not pattern(["a … c"]).fullmatch("a b d\n") and not pattern(["a"]).fullmatch("a\nb\n")


def test_files_of_tests_are_found() -> None:
    assert all(Path(ROOT / path).exists() for paths in readers().values() for path in paths)
