"""Tracing as a broker is set to it.

Is: the section of the settings. Isn't: the choice of messages (`replicator.health.tracing`), or the export
(`heliograph.runtime.span_export`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from heliograph.model.configuration.setting import check_bounds, setting
from heliograph.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    endpoint: str = setting("")
    """Where an OpenTelemetry collector takes traces by OTLP/HTTP, such as http://127.0.0.1:4318/v1/traces; empty:
    nothing is traced.
    """
    one_in: int = setting(10_000, "messages", least=1, most=1 << 40, means="every message")
    """One of so many messages (entries) is traced; the same in every region, or the regions choose different ones."""
    delay_s: float = setting(5.0, "s", least=0.05, most=300)
    """So long spans are gathered before they are sent."""
    headers_file: str = setting("")
    """Lines of `Name: value` that are sent along, such as a collector's key."""

    def __post_init__(self) -> None:
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"broker.tracing.endpoint: expected http://host:4318/v1/traces, not {self.endpoint!r}")
        check_bounds(self, "broker.tracing")
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
