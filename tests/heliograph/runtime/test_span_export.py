"""SpanExport: what it costs whoever emits and ends, where the collector does not answer."""

from __future__ import annotations

import socket
import time

import pytest

pytest.importorskip("opentelemetry.sdk.trace")

from heliograph.runtime.span_export import SpanExport
from replicator.health.tracing import Span


def test_a_collector_that_does_not_answer_holds_nobody_up_at_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        endpoint = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1/traces"
        export = SpanExport(endpoint, {}, {"service.name": "test"}, delay_ms=60_000, flush_s=0.1)
        for number in range(1, 600):
            export.emit(Span(7, number, 0, "publish", 1, 2, {}))
        began = time.monotonic()
        export.close()
        assert time.monotonic() - began < 2
