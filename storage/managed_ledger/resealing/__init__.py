"""Closed ledgers that are written anew under another data key."""
