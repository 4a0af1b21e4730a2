"""Whoever listens: how many connections and handshakes there may be, in all and by address. It knows no protocol."""
