"""Which broker serves which bundle."""
