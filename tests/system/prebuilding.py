"""Builds, before tests want it, what Go takes minutes for.

Is: a program for `.ci/run`, which runs it beside what mostly waits. Isn't: needed by a test, which builds what it does
not find, or waits for whoever does.
"""

from __future__ import annotations

import contextlib

import pytest

from tests.system.go_suite import suite
from tests.system.object_store import versitygw
from tests.system.programs import helm, kubeconform, pulsarctl, tofu


def main() -> None:
    """What cannot be built is left to the test that says so."""
    for program in (suite, tofu, helm, versitygw, pulsarctl, kubeconform):
        with contextlib.suppress(pytest.skip.Exception):
            program()


if __name__ == "__main__":
    main()
