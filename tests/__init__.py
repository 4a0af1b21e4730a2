"""Tests, each in the folder of what it tests: of `local_meta/keys.py` in `tests/local_meta/test_keys.py`.

Asserts in what tests share say what they compared, as those in tests do.
"""

import sys
from pathlib import Path

if "pytest" in sys.modules:  # not in a soak, or in fuzzing
    import pytest

    pytest.register_assert_rewrite(
        *(f"{__name__}.{p.parent.name}" for p in Path(__file__).parent.glob("*/__init__.py"))
    )
