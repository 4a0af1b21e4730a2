"""Payloads to columns, by declared or registered schemas. It knows no position and no Spark session."""
