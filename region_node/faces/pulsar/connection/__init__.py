"""Pulsar's sockets: handshake, who it is, what it still may. It imports handlers, and answers nothing itself."""
