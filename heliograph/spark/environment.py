"""A Spark session that can read Heliograph, with the settings that the Python data source wants.

Is: environment and registration. Isn't: the source (`heliograph.spark.source`).
PYSPARK_PYTHON is set for the user: workers would take whatever `python3` is first in PATH.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from heliograph.model.errors import ConfigError


def session(name: str, *, master: str = "local[2]", settings: dict[str, str] | None = None) -> Any:
    """A SparkSession with the source registered. Raises ConfigError where pyspark or Java is missing."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError("pyspark is not installed; run: pip install 'heliograph[spark]'") from error
    builder = SparkSession.builder.master(master).appName(name)
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.log.level": "ERROR",
    }
    for key, value in {**defaults, **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        return register(builder.getOrCreate())
    except Exception as error:  # py4j raises its own errors for a missing or old Java
        if "JAVA" in str(error).upper():
            raise ConfigError("Spark needs a JDK 17 or newer: install one, or point JAVA_HOME at it") from error
        raise


def register(spark: Any) -> Any:
    """Makes `format("heliograph")` known to a session; returns the session."""
    from heliograph.spark.source import HeliographDataSource

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark.dataSource.register(HeliographDataSource)
    return spark
