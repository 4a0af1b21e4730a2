"""Entries in memory, and what is read ahead. What is missing here is on bookies."""
