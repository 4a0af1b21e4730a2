"""Exposure: whether a broker would let whoever reaches it do everything.

Is: the few security settings that decide it, which are known before any key file is there. Isn't: what each listener
does; all of a broker's are bound to one address, and ask by the same settings.
Source: docs/security.md, "Open to all".
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from heliograph.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Fields are those of SecuritySettings."""

    authentication: tuple[str, ...] = ()
    authorization: bool = False
    anonymous_role: str = ""
    super_users: tuple[str, ...] = ()
    allow_insecure: bool = False

    def to_all(self, bind: str) -> bool:
        """Returns whether others than this machine may do everything, without a credential."""
        asked = bool(self.authentication) and not self.anonymous_role
        limited = self.authorization and self.anonymous_role not in self.super_users
        return not (asked or limited or _on_this_machine(bind))

    def check(self, where: str, bind: str) -> None:
        """Raises ConfigError, unless `allow_insecure` says that it is meant so."""
        if self.to_all(bind) and not self.allow_insecure:
            raise ConfigError(
                f"{where} is {bind}, and whoever reaches the broker there may do everything: set "
                'security.authentication (docs/operating.md, "Security"), or security.allow_insecure to true where '
                "nobody else can reach it"
            )


def _on_this_machine(bind: str) -> bool:
    try:
        return bind == "localhost" or ip_address(bind).is_loopback
    except ValueError:
        return False
