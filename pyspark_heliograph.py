"""Spark finds the format `heliograph` by this module's name, which is pyspark_ and the format's; the source itself is
`heliograph.spark.source`.
"""

from heliograph.spark.source import HeliographDataSource as DefaultSource

__all__ = ["DefaultSource"]
