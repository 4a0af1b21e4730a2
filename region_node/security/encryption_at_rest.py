"""Encryption at rest as a broker is set to it: where its region's master keys are.

Is: the section of the settings, the master keys out of a file or the environment, and what is counted. Isn't: sealing
(`storage.sealing`).
Invariants: a file that has changed is read again when keys are next asked for; one that cannot be used leaves the keys
that are known in place, and is logged.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from heliograph.model.configuration.setting import setting
from heliograph.model.errors import ConfigError
from storage.sealing.keyring import MasterKeys

log = logging.getLogger("region_node.encryption")

_OTHERS = 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSettings:
    master_key_file: str = setting("")
    """Lines of a name and a key, of `heliograph keys master FILE`; the first one wraps, the others only read. The same
    on every broker of a region.
    """
    master_key_secret: str = setting("")
    """The same lines themselves, for HELIOGRAPH_BROKER__ENCRYPTION__MASTER_KEY_SECRET. With both, the file counts."""

    def __post_init__(self) -> None:
        if self.master_key_file and not Path(self.master_key_file).is_file():
            raise ConfigError(
                f"broker.encryption.master_key_file: {self.master_key_file} does not exist; `heliograph keys master` "
                "makes one"
            )


class MasterSettings:
    """A `storage.sealing.sealing.MasterSource`. Raises ConfigError at once where what is set cannot be used."""

    def __init__(self, settings: EncryptionSettings) -> None:
        self.named = (
            f"broker.encryption.master_key_file{f' = {settings.master_key_file}' if settings.master_key_file else ''}"
        )
        self._path = Path(settings.master_key_file) if settings.master_key_file else None
        self._stamp: tuple[int, int, int] | None = None
        self._keys: MasterKeys | None = None
        if self._path is not None:
            self._stamp = _stamp(self._path)
            self._keys = read_keys(self._path)
        elif settings.master_key_secret:
            self.named = "HELIOGRAPH_BROKER__ENCRYPTION__MASTER_KEY_SECRET"
            self._keys = MasterKeys.parse(settings.master_key_secret, self.named)

    def read(self) -> MasterKeys | None:
        if self._path is not None and (stamp := _stamp(self._path)) not in (None, self._stamp):
            self._stamp = stamp
            try:
                self._keys = read_keys(self._path)
                log.info("keys.reloaded", extra={"path": str(self._path), "names": self._keys.names})
            except ConfigError as error:
                log.warning("keys.unreadable", extra={"path": str(self._path), "error": str(error)})
        return self._keys


def read_keys(path: Path) -> MasterKeys:
    """The keys of a file of `heliograph keys master`. Raises ConfigError, also where others than its owner may read
    it.
    """
    try:
        if path.stat().st_mode & _OTHERS:
            raise ConfigError(
                f"{path} can be read by others than its owner, and it holds master keys: chmod 600 {path}"
            )
        return MasterKeys.parse(path.read_text(encoding="utf-8", errors="replace"), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
