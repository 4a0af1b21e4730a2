"""Heliograph: geo-replicated messaging. The library and what people touch; the servers live in their own packages."""

__version__ = "0.1.0"
