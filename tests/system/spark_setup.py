"""What tests on clusters of Spark share: its commands, our wheel, and a Python without us."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark")
ROOT = Path(__file__).resolve().parent.parent.parent
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
SPARK_SUBMIT = SPARK_CLASS.with_name("spark-submit")


def our_wheel(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("heliograph-*.whl")
    return wheel.rename(
        folder / "heliograph.zip"
    )  # Spark puts archives into its workers' path, but none that is called .whl


def python_without_ours(folder: Path) -> str:
    """A Python with what our wheel depends on, and not the wheel itself."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return str(folder / "bin" / "python")


DOCS = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def recipes() -> dict[str, list[str]]:
    """By master, the words behind `spark-submit` of each recipe of the documentation."""
    block = next(each for each in re.findall(r"```sh\n(.*?)```", DOCS.read_text(), re.DOTALL) if "spark-submit" in each)
    lines = [line for line in block.replace("\\\n", " ").splitlines() if "spark-submit" in line]
    found = [shlex.split(line)[shlex.split(line).index("spark-submit") + 1 :] for line in lines]
    return {words[words.index("--master") + 1]: words for words in found}
