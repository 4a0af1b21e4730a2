"""SpanExport: finished spans, to an OpenTelemetry collector by OTLP over HTTP.

Is: a bounded queue and one thread of OpenTelemetry's own behind `emit`. Isn't: a choice of what is traced, or an id.
Invariants: `emit` never blocks; what does not fit into the queue, or is refused by the collector, is dropped. Nothing
of OpenTelemetry is imported before one of these is made: who does not trace need not have it installed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

from heliograph.model.errors import ConfigError

QUEUE_MAX = 4096
_TIMEOUT_S = 5


class AnySpan(Protocol):
    """Times in ns since 1970; a parent of 0 is none; remote: the parent was made elsewhere."""

    @property
    def trace(self) -> int: ...

    @property
    def span(self) -> int: ...

    @property
    def parent(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def begin_ns(self) -> int: ...

    @property
    def end_ns(self) -> int: ...

    @property
    def attributes(self) -> Mapping[str, str | int]: ...

    @property
    def remote(self) -> bool: ...


class SpanExport:
    """Raises ConfigError where OpenTelemetry is not installed. resource: who sends, such as {"service.instance.id":
    "eu-broker-0"}.
    """

    def __init__(
        self,
        endpoint: str,
        headers: Mapping[str, str],
        resource: Mapping[str, str],
        *,
        delay_ms: int = 1000,
        flush_s: float = 2.0,
    ) -> None:
        """delay_ms: how long a span waits for others. flush_s: how long `close` blocks at most."""
        self._flush_s = flush_s
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import ReadableSpan
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import SpanContext, TraceFlags
        except ImportError as error:
            raise ConfigError(
                "broker.tracing wants OpenTelemetry: pip install opentelemetry-sdk "
                "opentelemetry-exporter-otlp-proto-http"
            ) from error
        self._span: Any = ReadableSpan
        self._context: Any = SpanContext
        self._sampled = TraceFlags(TraceFlags.SAMPLED)
        self._resource = Resource(dict(resource))
        exporter = OTLPSpanExporter(endpoint=endpoint, headers=dict(headers), timeout=_TIMEOUT_S)
        self._processor: Any = BatchSpanProcessor(exporter, max_queue_size=QUEUE_MAX, schedule_delay_millis=delay_ms)

    def emit(self, span: AnySpan) -> None:
        context = self._context(span.trace, span.span, False, self._sampled)
        parent = self._context(span.trace, span.parent, span.remote, self._sampled) if span.parent else None
        self._processor.on_end(
            self._span(
                span.name,
                context=context,
                parent=parent,
                resource=self._resource,
                attributes=dict(span.attributes),
                start_time=span.begin_ns,
                end_time=span.end_ns,
            )
        )

    def close(self) -> None:
        """Sends what waits, and blocks for that, for `flush_s` at most: what the collector has not taken by then is
        lost.
        """
        ending = threading.Thread(
            target=self._processor.shutdown, daemon=True
        )  # with a collector that does not answer it takes half a minute
        ending.start()
        ending.join(self._flush_s)


def now_ns() -> int:
    """Reads the wall clock, as spans want it: nanoseconds since 1970."""
    return time.time_ns()
