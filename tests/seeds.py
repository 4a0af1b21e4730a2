"""How many seeds the suite gives to each of the simulations that docs/failures.md counts.

Is: numbers. Isn't: the seeds of a soak, which are as many as it is told (`geo_tests.sim.soak`, `tests.storage.soak`).
"""

from __future__ import annotations

WORLDS = 119
LARGE_WORLDS = 16
"""The first of them; the others have three regions, one topic, and fewer messages and faults."""
PASSIVE_WORLDS = 4
SMALL_PASSIVE_WORLDS = 56
SUBSCRIPTION_WORLDS = 6
LOST_DISK_WORLDS = 12
VOTER_WORLDS = 6
TRIMMED_WORLDS = 4
STORY_WORLDS = 4
LINKS = 200
TREES = 46
