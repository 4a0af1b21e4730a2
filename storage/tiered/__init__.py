"""Ledgers in object stores: the port to a store, and settings."""
