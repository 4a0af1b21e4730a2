"""Both wheels, built and installed into a fresh environment: the library alone, then with the servers."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SERVER_PACKAGES = {"global_config", "local_meta", "storage", "replicator", "region_node"}
FOLDER = "heliograph_server"


def run(*command: str | Path) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_library_wheel_holds_nothing_of_the_servers(wheels: list[Path]) -> None:
    library = next(w for w in wheels if w.name.startswith("heliograph-"))
    tops = {name.split("/")[0] for name in zipfile.ZipFile(library).namelist() if ".dist-info" not in name}
    assert tops == {"heliograph", "pyspark_heliograph.py"}


@pytest.mark.slow
def test_the_server_wheel_holds_the_five_in_one_folder_and_a_door(wheels: list[Path]) -> None:
    server = next(w for w in wheels if w.name.startswith("heliograph_server-"))
    names = [n for n in zipfile.ZipFile(server).namelist() if ".dist-info" not in n]
    assert {name.split("/")[1] for name in names if name.startswith(f"{FOLDER}/")} == SERVER_PACKAGES
    assert [name for name in names if not name.startswith(f"{FOLDER}/")] == ["region_node/__init__.py"]
    assert not [n for n in names if "__pycache__" in n]
    sums = {f"{FOLDER}/region_node/instance/toxiproxy/{name}" for name in ("go.mod", "go.sum")}
    assert sums <= set(names), "what `heliograph wan install` builds Toxiproxy from"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_both_install_into_a_fresh_environment(wheels: list[Path], tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    run(sys.executable, "-m", "venv", tmp_path / "env")
    locked = ROOT / "requirements" / "server.txt"
    library = next(w for w in wheels if w.name.startswith("heliograph-"))
    server = next(w for w in wheels if w.name.startswith("heliograph_server-"))
    run(python, "-m", "pip", "install", "-q", "--only-binary", ":all:", "--require-hashes", "-r", locked)
    run(python, "-m", "pip", "install", "-q", "--no-index", library)
    assert "0.1.0" in run(tmp_path / "env" / "bin" / "heliograph", "version")
    assert "standalone" not in run(tmp_path / "env" / "bin" / "heliograph", "--help")
    run(python, "-m", "pip", "install", "-q", "--no-index", server)
    assert "standalone" in run(tmp_path / "env" / "bin" / "heliograph", "--help")
    run(python, "-c", "import region_node.process.role_process, storage.bookie, replicator, global_config, local_meta")
