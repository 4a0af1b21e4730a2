"""SpanExport: what it costs whoever emits and ends, where the collector does not answer."""

from __future__ import annotations

import socket
import time

import pytest

pytest.importorskip("opentelemetry.sdk.trace")

from heliograph.runtime import span_export
from replicator.health.tracing import Span


def test_a_collector_that_does_not_answer_holds_nobody_up_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "_FLUSH_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        export = span_export.SpanExport(
            f"http://127.0.0.1:{deaf.getsockname()[1]}/v1/traces", {}, {"service.name": "test"}, delay_ms=60_000
        )
        for number in range(1, 600):
            export.emit(Span(7, number, 0, "publish", 1, 2, {}))
        began = time.monotonic()
        export.close()
        assert time.monotonic() - began < 2
