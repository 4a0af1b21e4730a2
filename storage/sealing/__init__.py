"""Encryption at rest: ciphers, data keys, and sealed runs."""
