"""A real browser for tests: Debian's chromium, unpacked into ~/.cache/heliograph with what it wants, driven by
playwright in an environment of its own.

Is: having both, and running a script of playwright's in that environment. Isn't: a test, or a page.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cache import once
from tests.system.programs import fetch, reason, unpack_debian

PLAYWRIGHT = "1.65.2"
_BROWSER_S = 600


def chromium() -> Path:
    """The machine's own, or Debian's, unpacked. Skips in one sentence where neither can be had."""
    own = shutil.which("chromium")
    if own is not None:
        return Path(own)

    def unpack(scratch: Path) -> None:
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            pytest.skip("chromium has to be unpacked from Debian's packages, and apt-get is absent")
        try:
            planned = fetch(
                ["apt-get", "install", "--simulate", "--no-install-recommends", "chromium", "fonts-dejavu-core"],
                scratch,
            )
            unpack_debian(re.findall(r"^Inst (\S+)", planned, re.MULTILINE), scratch)
        except subprocess.SubprocessError as error:
            pytest.skip(f"chromium cannot be had from Debian here: {reason(error)}")

    return once("debian-chromium", unpack) / "usr" / "lib" / "chromium" / "chromium"


def interpreter() -> Path:
    """The interpreter that has playwright. Skips in one sentence where it cannot be made."""

    def make(scratch: Path) -> None:
        try:
            subprocess.run([sys.executable, "-m", "venv", str(scratch)], check=True, capture_output=True, text=True)
            fetch(
                [str(scratch / "bin" / "python"), "-m", "pip", "install", "--quiet", f"playwright=={PLAYWRIGHT}"],
                scratch,
            )
        except subprocess.SubprocessError as error:
            pytest.skip(f"playwright {PLAYWRIGHT} cannot be installed here: {reason(error)}")

    return once(f"playwright-{PLAYWRIGHT}", make) / "bin" / "python"


def drive(script: Path, steps: str, **given: Any) -> dict[str, Any]:
    """Runs function `steps` of the script in the environment with playwright; what it returns. given: its arguments, as
    JSON carries them.
    """
    program = chromium()
    found = program.parents[2] / "lib" / "x86_64-linux-gnu" if "debian-chromium" in program.parts else None
    libraries = "" if found is None else ":".join(str(path) for path in (found, found / "pulseaudio", program.parent))
    environment = {**os.environ, **({"LD_LIBRARY_PATH": libraries} if libraries else {})}
    command = [str(interpreter()), str(script), steps, str(program), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_BROWSER_S)
    assert done.returncode == 0, f"{steps}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
