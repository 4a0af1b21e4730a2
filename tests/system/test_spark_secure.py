"""Spark at a region that asks who is there: HTTPS, the broker's TLS port, tokens in files; roles that may, and roles
that may not.

Is: source, sink, and a stream with a subscription, as a user gives them their options. Isn't: who may do what in
general (`tests/region_node/security`).
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geo_tests.wan.kafka_support import DEADLINE_S, secure_region, token
from tests.heliograph.spark.running import started

pytest.importorskip("pyspark")
pytestmark = pytest.mark.system
TOPIC = "persistent://public/default/secured"


@pytest.mark.timeout(1200)
def test_a_job_reads_and_writes_over_tls_as_who_its_token_says(tmp_path: Path) -> None:
    from heliograph.spark import session

    with secure_region(tmp_path) as region:
        url = f"https://127.0.0.1:{region.processes['us-broker-0'].ports['admin_tls']}"
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token('root')}"}
        switch = f"{region.admin_url()}/admin/v2/namespaces/public/default/deduplication"
        urllib.request.urlopen(
            urllib.request.Request(switch, b"true", headers, method="POST"), timeout=DEADLINE_S
        ).read()
        for role in ("ann", "bob", "eve"):
            (tmp_path / f"{role}.token").write_text(token(role) + "\n")

        def options(role: str, **more: str) -> dict[str, str]:
            return {
                "admin_url": url,
                "topic": TOPIC,
                "tls_ca": str(tmp_path / "tls" / "ca.pem"),
                "token_file": str(tmp_path / f"{role}.token"),
                **more,
            }

        spark = session("secured")
        try:
            told = [json.dumps({"id": n}) for n in range(1000)]
            table = spark.createDataFrame([(each,) for each in told], "value string")

            def write(role: str) -> None:
                table.write.format("heliograph").options(**options(role, name=f"by-{role}")).mode("append").save()

            def read(**given: str) -> Any:
                return spark.read.format("heliograph").schema("id bigint").options(**given).load()

            write("ann")
            assert sorted(row.id for row in read(**options("bob")).collect()) == list(range(1000))
            stream = (
                spark.readStream.format("heliograph")
                .schema("id bigint")
                .options(**options("bob", subscription="lake"))
                .load()
            )
            into = (
                stream.writeStream.format("parquet")
                .option("path", str(tmp_path / "out"))
                .option("checkpointLocation", str(tmp_path / "state"))
            )
            query = started(into.trigger(availableNow=True).start)
            assert query.awaitTermination(600) and query.exception() is None
            assert spark.read.parquet(str(tmp_path / "out")).count() == 1000
            by_service_url = {
                **options("bob"),
                "admin_url": "",
                "service_url": f"pulsar+ssl://127.0.0.1:{region.processes['us-broker-0'].ports['pulsar_tls']}",
            }
            assert read(**by_service_url).count() == 1000

            nobody = {key: value for key, value in options("bob").items() if key != "token_file"}
            strangers = {key: value for key, value in options("bob").items() if key != "tls_ca"}
            refused: tuple[tuple[Callable[[], Any], str], ...] = (
                (lambda: write("bob"), "may not|not authorized|AuthorizationError"),
                (lambda: read(**options("eve")).count(), "the role .eve. may not"),
                (lambda: read(**nobody).count(), "401"),
                (lambda: read(**strangers).count(), "CERTIFICATE_VERIFY_FAILED"),
                (
                    lambda: read(**options("bob", token_file=str(tmp_path / "gone"))).count(),
                    "the token file .* cannot be read",
                ),
            )
            for act, why in refused:
                with pytest.raises(Exception, match=why):
                    act()
            assert read(**options("ann")).count() == 1000, "what was refused wrote nothing"
        finally:
            spark.stop()
