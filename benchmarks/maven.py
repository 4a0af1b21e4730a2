"""Jars that tests and benchmarks fetch by Maven, checked by sums of ours: `requirements/jars.txt`.

Is: the fetch, and the check. Isn't: where jars are kept (`benchmarks.cache`).
Invariants: a jar that stands in no line, or has another sum, is not used.

    python -m benchmarks.maven    writes the lines anew, from what the cache holds: after a version has changed
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from benchmarks.cache import CACHE

SUMS = Path(__file__).resolve().parent.parent / "requirements" / "jars.txt"
FOLDERS = ("hadoop-minicluster-*", "kafka-[0-9]*", "kafka-clients/*", "pulsar-[0-9]*", "pulsar-tools-*")


def copy_dependencies(pom: Path, into: Path) -> None:
    """Fills `into` with the jars of `pom`. Raises CalledProcessError where Maven fails, with what it printed, and
    ValueError where a jar is another one than ours.
    """
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={into}"]
    subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check(into)


def check(folder: Path, lines: Path = SUMS) -> None:
    """Raises ValueError naming a jar of `folder` that stands in none of the lines, or has another sum."""
    known = {line.split()[1]: line.split()[0] for line in lines.read_text().splitlines()}
    for name, found in sums(folder):
        if known.get(name) != found:
            raise ValueError(
                f"{name} is not the jar that requirements/jars.txt knows (sha256 {known.get(name, 'none')}, found "
                f"{found}): where its version was changed on purpose, run `python -m benchmarks.maven`"
            )


def sums(folder: Path) -> list[tuple[str, str]]:
    return [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in sorted(folder.glob("*.jar"))]


def main() -> None:
    found: dict[str, str] = {}
    for folder in sorted(path for pattern in FOLDERS for path in CACHE.glob(pattern) if path.is_dir()):
        for name, sum_of in sums(folder):
            if found.setdefault(name, sum_of) != sum_of:
                raise SystemExit(f"{name} is in {folder} and elsewhere with two sums")
    SUMS.write_text("".join(f"{sum_of}  {name}\n" for name, sum_of in sorted(found.items())))
    print(f"{len(found)} jars in {SUMS}")


if __name__ == "__main__":
    main()
