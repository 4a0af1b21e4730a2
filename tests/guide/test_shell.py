"""The shell that reads pages: what a command leaves to the next one, and what is no success."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guide.page import Page
from tests.guide.shell import Reader, Shell

PAGE = """## One
```console
$ mkdir below && cd below
$ NAME="two words" && export OTHER=PLACE
$ echo "$NAME" $OTHER $(basename $PWD)
two words …   below
$ heliograph version
0.…
$ read answer; echo $answer   # asks
yes
```
## Two
<!-- guide: stays -->
```console
$ sh -c 'echo ready; exec sleep 600'
ready
```
"""


def test_folder_and_variables_are_kept_and_what_is_printed_is_compared(tmp_path: Path) -> None:
    with Shell(tmp_path, places={"PLACE": "elsewhere"}) as shell:
        reader = Reader(Page.parse("a.md", PAGE), shell)
        said = reader.section("One")
        assert said[2] == "two words elsewhere below\n" and (tmp_path / "below").is_dir()
        with pytest.raises(AssertionError, match="and there is"):
            reader.finish()
        reader.section("Two")
        reader.finish()
        with pytest.raises(AssertionError, match="false"):
            shell.run("false")
        with pytest.raises(AssertionError, match="false"):
            shell.run("false | cat")
        assert shell.run("exit 3", codes=(3,)) == ""
        with pytest.raises(AssertionError, match="the page shows"):
            shell.run(Page.parse("b.md", "```console\n$ echo one\ntwo\n```").blocks[0].commands[0])
        shell.program("other", ["printf", "%s|"])
        assert shell.run("other 'a b' c") == "a b|c|"
        assert "No such command" in shell.run("heliograph nonsense 2>&1", codes=(2,))
