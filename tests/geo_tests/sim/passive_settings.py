"""Settings of whole instances with an active-passive namespace."""

from __future__ import annotations

from dataclasses import replace

from geo_tests.sim.world import WorldSettings

SETTINGS = WorldSettings(regions=("us", "eu", "ap"), messages=40, chaos_s=14.0, topics=1)
SMALL = replace(SETTINGS, messages=12, chaos_s=6.0, faults=4, brokers=1, bookies=2)
"""A third of a CPU second each: a world's cost is its timers and messages, those of metadata most of all, and they grow
with processes and virtual time.
"""
