"""A micro-batch's files into parquet, Delta, Iceberg, or Hive tables, each batch once. Which topics are read is
decided elsewhere.
"""
