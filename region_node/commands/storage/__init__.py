"""Operators' commands that ask metadata, bookies, and stores themselves, without a broker."""
