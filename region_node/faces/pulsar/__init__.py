"""Pulsar's binary protocol: its connections, and a handler for each command."""
