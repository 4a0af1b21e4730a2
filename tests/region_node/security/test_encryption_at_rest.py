"""Where a broker finds its region's master keys: a file of its own user's, or the environment."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from heliograph.model.errors import ConfigError
from region_node.security.encryption_at_rest import EncryptionSettings, MasterSettings

ONE, TWO = (f"{name} {base64.b64encode(32 * name[:1].encode()).decode()}\n" for name in ("one", "two"))


def test_the_lines_themselves_are_taken_where_there_is_no_file(tmp_path: Path) -> None:
    given = MasterSettings(EncryptionSettings(master_key_secret=TWO + ONE))
    assert (keys := given.read()) is not None and keys.names == ["two", "one"]
    assert "MASTER_KEY_SECRET" in given.named
    file = tmp_path / "keys"
    file.write_text(ONE)
    file.chmod(0o600)
    both = MasterSettings(EncryptionSettings(master_key_file=str(file), master_key_secret=TWO))
    assert (keys := both.read()) is not None and keys.names == ["one"], "the file counts"
    assert MasterSettings(EncryptionSettings()).read() is None


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(ONE)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        MasterSettings(EncryptionSettings(master_key_file=str(file)))
    with pytest.raises(ConfigError, match="heliograph keys master"):
        EncryptionSettings(master_key_file=str(tmp_path / "none"))
