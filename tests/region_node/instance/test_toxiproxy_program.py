"""Where Toxiproxy's server is looked for, and what is said where it cannot be built."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.model.errors import ConfigError
from region_node.instance import toxiproxy_program


def program(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without anything, in a folder of their own."""
    monkeypatch.delenv("HELIOGRAPH_TOXIPROXY", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_what_is_named_comes_first_then_what_was_installed_then_the_path(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_path = program(alone / "bin" / "toxiproxy-server")
    if (ours := toxiproxy_program.found()) == in_path:  # else the checkout has its own
        installed = program(toxiproxy_program.place())
        assert installed == alone / "share" / "heliograph" / "bin" / "toxiproxy-server"
        assert toxiproxy_program.found() == installed
    else:
        assert ours is not None and ours.parts[-3:] == (".tools", "bin", "toxiproxy-server")
    monkeypatch.setenv("HELIOGRAPH_TOXIPROXY", str(alone / "mine"))
    assert toxiproxy_program.found() == alone / "mine", "also where no file is: its name is an operator's word"


def test_without_go_or_with_an_old_one_it_says_what_to_install(alone: Path) -> None:
    target = alone / "there" / "toxiproxy-server"
    with pytest.raises(
        ConfigError, match=r"^Go is not here, and .* Go 1\.24 or newer.*go\.dev/dl.*HELIOGRAPH_TOXIPROXY"
    ):
        toxiproxy_program.install(target)
    for said, told in (("echo go version go1.19.8 linux/amd64", "go is go1.19"), ("exit 1", "go is no Go")):
        program(alone / "bin" / "go", said)
        with pytest.raises(ConfigError, match=f"{told}, and Toxiproxy is built by Go"):
            toxiproxy_program.install(target)
    assert not target.exists()


BUILDS = """
if [ "$1" = version ]; then echo go version go1.24.1 linux/amd64; exit; fi
[ -z "$FAILS" ] || { echo "$FAILS"; exit 1; }
while [ "$1" != -o ]; do
    if [ "$1" = -C ]; then [ -f "$2/go.mod" ] && [ -f "$2/go.sum" ] || exit 3; fi
    shift
done
echo "built of $3 by $GOTOOLCHAIN $GOFLAGS" > "$2"
"""


def test_it_is_built_from_the_modules_that_come_along_and_is_there_whole_or_not(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(alone / "bin" / "go", BUILDS)
    target = alone / "there" / "toxiproxy-server"
    monkeypatch.setenv("FAILS", "dial tcp: no such host")
    with pytest.raises(ConfigError, match=r"Go did not build Toxiproxy: dial tcp: no such host\n.*GOPROXY"):
        toxiproxy_program.install(target)
    assert list(target.parent.iterdir()) == [], "nothing is left of it"
    monkeypatch.delenv("FAILS")
    toxiproxy_program.install(target)
    assert target.read_text().startswith("built of github.com/Shopify/toxiproxy/v2/cmd/server by local ")
    assert list(target.parent.iterdir()) == [target]


def test_a_place_that_cannot_be_written_is_named(alone: Path) -> None:
    program(alone / "bin" / "go", BUILDS)
    (alone / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/x/toxiproxy-server cannot be written .*--to FILE"):
        toxiproxy_program.install(alone / "file" / "x" / "toxiproxy-server")
