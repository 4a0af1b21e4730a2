"""Benchmarks: each prints a ratio to a floor or a peer, measured in one run. A number alone says nothing on a shared
machine.
"""
