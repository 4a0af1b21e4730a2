"""CycloneDX's own library takes the bill of materials for one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cache import once
from tests.system import programs
from tools import lock, sbom

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
_VALID = """
import sys
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation import make_schemabased_validator
wrong = make_schemabased_validator(OutputFormat.JSON, SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
sys.exit(str(wrong) if wrong else 0)
"""


def library() -> Path:
    locked = lock.FOLDER / "sbom.txt"

    def make(scratch: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "-q", "--require-hashes", "--only-binary", ":all:"]
        try:
            programs.fetch([*command, "--target", str(scratch), "-r", str(locked)], scratch)
        except subprocess.SubprocessError as error:
            pytest.skip(f"CycloneDX's library cannot be fetched here: {programs.reason(error)}")

    return once(f"cyclonedx-{programs.digest(locked)}", make)


@pytest.mark.parametrize("whole", [True, False])
def test_the_schema_takes_it(tmp_path: Path, whole: bool) -> None:
    for name in ("heliograph-1.2.3-py3-none-any.whl", "heliograph_server-1.2.3-py3-none-any.whl"):
        (tmp_path / name).write_text(name)
    path = sbom.write(tmp_path)
    if not whole:
        path.write_text(path.read_text().replace('"SHA-256"', '"SHA-257"', 1))
    words = [sys.executable, "-c", _VALID, str(path)]
    done = subprocess.run(words, env={"PYTHONPATH": str(library())}, capture_output=True, text=True)
    assert (done.returncode == 0) is whole, done.stderr
