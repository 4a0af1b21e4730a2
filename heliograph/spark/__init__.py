"""Spark reads a region's local copy: `from heliograph.spark import session, register`.

    spark = session("counts")                        # or: register(SparkSession.builder.getOrCreate())
    rows = spark.read.format("heliograph").options(admin_url="http://127.0.0.1:8080", topic="persistent://a/b/c").load()

Also without a line of code: the format name `heliograph` is found by Spark itself.
"""

from heliograph.spark.environment import register, session
from heliograph.spark.portable import portable
from heliograph.spark.sql import Pipeline

__all__ = ["Pipeline", "portable", "register", "session"]
