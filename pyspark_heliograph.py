"""Spark finds the format `pyspark_heliograph` by this module's name; the source itself is `heliograph.spark.source`."""

from heliograph.spark.source import HeliographDataSource as DefaultSource

__all__ = ["DefaultSource"]
