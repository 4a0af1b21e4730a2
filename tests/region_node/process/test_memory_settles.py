"""What a process does not free by counting references is freed all the same, seldom."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import weakref
from region_node.process.role_process import settle_memory

class Circle:
    def __init__(self):
        self.me = self

settle_memory()
living, ended = [], []

def some(count):
    for _ in range(count):
        living.append([])

for _ in range(3):
    old = [Circle() for _ in range(1000)]
    some(2_000_000)  # each of them has lived for long
    ended += [weakref.ref(circle) for circle in old]
    del old
some(4_000_000)
print(sum(circle() is not None for circle in ended))
"""


def test_circles_that_have_lived_for_long_are_freed_without_being_asked_to() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(told.stdout) == 0
