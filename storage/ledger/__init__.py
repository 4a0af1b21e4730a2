"""Ledgers over a quorum of bookies: what writers, readers, and repair share."""
