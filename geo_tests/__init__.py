"""Simulated worlds (`sim`), and real processes through Toxiproxy (`wan`), whose asserts all say what they compared."""

import sys

if "pytest" in sys.modules:  # not in a soak
    import pytest

    pytest.register_assert_rewrite("geo_tests.wan")
