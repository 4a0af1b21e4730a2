"""Chunked messages: their pieces are rows of a raw stream, which goes on, and nothing that a replay could publish
anew.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.heliograph.spark.running import NAMESPACE, PATIENT, run
from tests.region_node.live import provisioned
from tests.region_node.rest_client import Rest

pytestmark = pytest.mark.system  # a JVM of its own, a minute on a busy machine

pytest.importorskip("pyspark")


def test_a_chunked_message_ends_no_query(tmp_path: Path) -> None:
    from heliograph.spark import session

    topic, to = f"{NAMESPACE}/chunked", f"{NAMESPACE}/chunked-again"
    big = (b"%030d" % 7) * 500_000  # fits in no frame until it is cut
    (tmp_path / "region").mkdir()
    with provisioned(tmp_path / "region") as region:
        assert Rest(region.admin_url())("POST", "/admin/v2/namespaces/public/default/deduplication", True)[0] == 204
        with closing(pulsar.Client(region.service_url())) as client:
            plain = client.create_producer(topic, batching_enabled=False, **PATIENT)
            cut = client.create_producer(
                topic,
                batching_enabled=False,
                chunking_enabled=True,
                compression_type=pulsar.CompressionType.NONE,
                **PATIENT,
            )
            plain.send(b"before")
            cut.send(big)
            plain.send(b"behind")
        spark = session("chunks", settings={"spark.sql.shuffle.partitions": "2"})
        try:
            options: dict[str, Any] = {"admin_url": region.admin_url(0), "topic": topic}
            found = (
                spark.read.format("heliograph")
                .schema("value binary, sealed string, entry bigint")
                .options(**options)
                .load()
                .orderBy("entry")
                .collect()
            )
            assert [row.sealed for row in found] == [None, *["piece"] * (len(found) - 2), None] and len(found) > 3
            assert b"".join(bytes(row.value) for row in found) == b"before" + big + b"behind"
            job = {"topics": [topic], "to": to, "rate": 1000}
            with pytest.raises(Exception, match="a piece of a chunked one: say skip_sealed"):
                run(spark, "replay", region.admin_url(0), {**job, "checkpoint": str(tmp_path / "refused")})
            run(
                spark,
                "replay",
                region.admin_url(0),
                {**job, "skip_sealed": True, "checkpoint": str(tmp_path / "skipped")},
            )
            again = (
                spark.read.format("heliograph")
                .options(admin_url=region.admin_url(0), topic=to)
                .load()
                .select("value")
                .collect()
            )
            assert sorted(bytes(row.value) for row in again) == [b"before", b"behind"]
        finally:
            spark.stop()
