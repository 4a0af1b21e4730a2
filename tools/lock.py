"""Makes the locked versions in `requirements` anew, with the sums of all their files: `python tools/lock.py`; further
words go to uv. `--check`: changes nothing, and says whether they are of today's requirements, and none was yanked.

Is: what `make lock` runs; uv resolves, and takes the sums from the index. Isn't: an installer.
Invariants: `server.txt` and `build.txt` have versions of `lock.txt` alone; one yanked version, and nothing is written.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
UV = ROOT / ".tools" / "uv"
_EXTRAS = ("--extra", "test", "--extra", "dev", "--extra", "spark")
LOCKS = {
    "lock.txt": (*_EXTRAS, "pyproject.toml", "requirements/server.in", "requirements/build.in"),
    "server.txt": ("pyproject.toml", "requirements/server.in"),
    "build.txt": ("requirements/build.in",),
    "uv.txt": ("requirements/uv.in",),
    "go.txt": ("requirements/go.in",),
    "sbom.txt": ("requirements/sbom.in",),
}
"""Each file, and what it is made from. The first constrains the next two."""
_WORDS = "--generate-hashes --universal --python-version 3.11 --no-annotate --no-header --no-emit-index-url"
_YANKED = re.compile(r"`([^`]+)` is yanked(?: \(reason: (.*)\))?")
_CONNECTION = re.compile(r"error sending request|failed to fetch|network was disabled|dns error|timed out", re.I)


class Locked(NamedTuple):
    """One version of a lock. marker: where it is installed; empty: everywhere. text: its lines, as pip reads them."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    text: str


def read(text: str) -> list[Locked]:
    """What a lock has. Raises ValueError for a line that is no exact version."""
    found = []
    for block in re.findall(r"^[^#\s].*(?:\n[ \t]+.*)*", text, re.MULTILINE):
        first = block.partition("--hash")[0].strip(" \\\n")
        parts = re.fullmatch(r"([\w.-]+)==([\w.!+]+)(?: *; *(.*))?", first)
        if parts is None:
            raise ValueError(f"{first}: a lock has lines NAME==VERSION; run `make lock`")
        sums = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})(?=\s|$)", block))
        found.append(Locked(parts[1], parts[2], parts[3] or "", sums, block))
    return found


def faults(text: str) -> list[str]:
    """What is wrong with a lock, in sentences, as far as it can be seen without an index."""
    locked = read(text)
    found = [f"{one.name}=={one.version} has no sum of its files; run `make lock`" for one in locked if not one.hashes]
    for one in locked:
        if len(one.hashes) != one.text.count("--hash="):
            found.append(f"{one.name}=={one.version} has a sum that is no sha256; run `make lock`")
    return found


def yanked(said: str) -> list[str]:
    """The versions of which uv said that their makers took them back."""
    return [f"{name} was taken back by its makers ({why or 'no reason given'})" for name, why in _YANKED.findall(said)]


def program() -> Path:
    """uv, of the locked version, in an environment of its own."""
    wanted = (FOLDER / "uv.txt").read_text()
    stamp = UV / "uv.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(UV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(UV)], check=True)
        pip = [str(UV / "bin" / "python"), "-m", "pip", "install", "-q", "--require-hashes"]
        subprocess.run([*pip, "-r", str(FOLDER / "uv.txt")], check=True)
        stamp.write_text(wanted)
    return UV / "bin" / "uv"


def made(scratch: Path, words: list[str]) -> list[str]:
    """Makes all locks in a folder that has those of before; returns what is wrong. Raises ConnectionError without an
    index.
    """
    wrong, env = [], dict(os.environ)
    if "PIP_CERT" in env:
        env.setdefault("SSL_CERT_FILE", env["PIP_CERT"])
    for name, sources in LOCKS.items():
        bound = ["-c", str(scratch / "lock.txt")] if name in ("server.txt", "build.txt") else []
        command = [str(program()), "pip", "compile", *_WORDS.split(), *words, *bound, "-o", str(scratch / name)]
        done = subprocess.run([*command, *sources], cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            if _CONNECTION.search(done.stderr):
                raise ConnectionError(done.stderr.strip().splitlines()[-1])
            sys.exit(f"lock: {name} could not be made:\n{done.stderr}")
        wrong += yanked(done.stderr)
    return sorted(set(wrong))


def main() -> None:
    words = sys.argv[1:]
    check = "--check" in words
    with tempfile.TemporaryDirectory(prefix="lock-") as folder:
        scratch = Path(folder)
        for name in LOCKS:
            shutil.copy(FOLDER / name, scratch / name)
        try:
            wrong = made(scratch, [word for word in words if word != "--check"])
        except (ConnectionError, subprocess.CalledProcessError) as error:
            sentence = f"lock: nothing was looked at, because the package index did not answer: {error}"
            if not check:
                sys.exit(sentence)
            print(sentence)
            return
        if wrong:
            sys.exit("lock: " + "; ".join(wrong) + '. Take another: make lock UPGRADE="--upgrade-package NAME"')
        for name in LOCKS:
            before, now = ((where / name).read_text() for where in (FOLDER, scratch))
            if not check:
                (FOLDER / name).write_text(now)
            elif [one[:3] for one in read(before)] != [one[:3] for one in read(now)]:
                sys.exit(f"lock: requirements/{name} is not of today's requirements; run `make lock`")


if __name__ == "__main__":
    main()
