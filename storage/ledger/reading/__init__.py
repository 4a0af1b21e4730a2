"""Reads of confirmed entries. It changes nothing."""
