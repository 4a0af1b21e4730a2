"""Bytes to meaning and back. Codecs are cores: no I/O, every buffer bounded, a wrong byte raises PeerError or
CorruptData.
"""
