"""Tracing as a broker is set to it.

Is: the section of the settings. Isn't: the choice of messages (`replicator.health.tracing`), or the export
(`heliograph.runtime.span_export`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from heliograph.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    endpoint: str = ""
    """Where an OpenTelemetry collector takes traces by OTLP/HTTP, such as http://127.0.0.1:4318/v1/traces; empty:
    nothing is traced.
    """
    one_in: int = 10_000
    """One of so many messages (entries) is traced; the same in every region, or the regions choose different ones."""
    delay_s: float = 5.0
    """So long spans are gathered before they are sent."""
    headers_file: str = ""
    """Lines of `Name: value` that are sent along, such as a collector's key."""

    def __post_init__(self) -> None:
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"broker.tracing.endpoint: expected http://host:4318/v1/traces, not {self.endpoint!r}")
        if not 1 <= self.one_in <= 1 << 40:
            raise ConfigError(f"broker.tracing.one_in must be 1 (every message) or more, not {self.one_in}")
        if not 0.05 <= self.delay_s <= 300:
            raise ConfigError(f"broker.tracing.delay_s must be 0.05 to 300, not {self.delay_s}")
        if self.headers_file and not Path(self.headers_file).is_file():
            raise ConfigError(f"broker.tracing.headers_file: {self.headers_file} does not exist")

    def headers(self) -> dict[str, str]:
        """Raises ConfigError; no text of it holds a value."""
        if not self.headers_file:
            return {}
        found: dict[str, str] = {}
        for number, line in enumerate(Path(self.headers_file).read_text(encoding="utf-8").splitlines(), 1):
            name, separator, value = line.partition(":")
            if line.strip() and (not separator or not name.strip()):
                raise ConfigError(f"{self.headers_file}, line {number}: expected `Name: value`")
            if line.strip():
                found[name.strip()] = value.strip()
        return found
