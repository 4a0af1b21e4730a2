"""Schemas of topics: what they are, whether one may follow another, and where they are stored."""
