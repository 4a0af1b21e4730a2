"""The Go client's own test suite as programs: its sources from the module zip, with its server's addresses taken from
the environment.

Is: built once, kept in ~/.cache/heliograph. Isn't: which tests one server can serve (`test_go_client`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from benchmarks.cache import once
from tests.system.programs import go_environment, go_module

MODULE, VERSION = "github.com/apache/pulsar-client-go", "v0.19.0"
_WHERE = """package {package}

import "os"

var whereService = os.Getenv("PULSAR_SERVICE")
var whereWeb = os.Getenv("PULSAR_WEB")
var whereServiceTLS = os.Getenv("PULSAR_SERVICE_TLS")
var whereWebTLS = os.Getenv("PULSAR_WEB_TLS")
var whereServiceAddress = os.Getenv("PULSAR_SERVICE_TLS_ADDRESS")
var whereWebAddress = os.Getenv("PULSAR_WEB_TLS_ADDRESS")
"""
PLACES = (
    ('"http://localhost:8080/', 'whereWeb+"/'),
    ('"http://localhost:8080"', "whereWeb"),
    ('"pulsar://localhost:6650"', "whereService"),
    ('"http://localhost:8081,localhost:8080"', '"http://localhost:1,"+strings.TrimPrefix(whereWeb,"http://")'),
    ('"pulsar+ssl://localhost:6651"', "whereServiceTLS"),
    ('"https://localhost:8443"', "whereWebTLS"),
    ('"pulsar+ssl://127.0.0.1:6651"', "whereServiceAddress"),
    ('"https://127.0.0.1:8443"', "whereWebAddress"),
)
"""What the suite has for its server's addresses -> ours, from the environment."""
PATIENT = (
    ("time.Now().Unix()", "time.Now().UnixNano()"),  # in names: several tests run in a second
    ("OperationTimeout: 200 * time.Millisecond,", "OperationTimeout: 8 * time.Second,"),
    ("\ttime.Sleep(300 * time.Millisecond)\n\tproducer1.Close()", "\ttime.Sleep(9 * time.Second)\n\tproducer1.Close()"),
    ("redeliveryTime2.UnixMilli(), 1)", "redeliveryTime2.UnixMilli(), 60_000)"),
    ("expected.Add(150 * time.Millisecond)", "expected.Add(time.Minute)"),
    ("int64(batchingDelay*2)", "int64(time.Minute)"),
    ("elapsed < 5*time.Second", "elapsed < time.Minute"),
    ("b.curBackoff+time.Second", "b.curBackoff+time.Minute"),
    ("time.After(200 * time.Millisecond)", "time.After(time.Minute)"),
    ("time.After(defaultBatchingMaxPublishDelay * 10)", "time.After(time.Minute)"),
    ("time.After(batchingDelay)", "time.After(time.Minute)"),
    *(  # what its timer has taken to acknowledge is sent behind a seek otherwise
        (f"\terr = consumer.{seek}(", f"\ttime.Sleep(time.Second)\n\terr = consumer.{seek}(")
        for seek in ("Seek", "SeekByTime")
    ),
)
"""What holds only where a test runs by itself on a quiet machine -> what always does: what is slow has a minute."""
TWO_BATCHES = ("TestConsumerBatchCumulativeAck",)
"""Tests that want each hundred messages in one batch, which 10 ms may part."""
TESTED = (
    "pulsar",
    "pulsaradmin/pkg/admin",
    "pulsaradmin/pkg/admin/auth",
    "pulsaradmin/pkg/rest",
    "pulsaradmin/pkg/utils",
)


def program(package: str) -> Path:
    return suite().parent / f"{package.replace('/', '-')}.test"


def suite() -> Path:
    """The folder of the sources; `program` of each package in TESTED lies beside it. Built once; skips in one sentence
    where that cannot be.
    """
    return once(f"pulsar-client-go-{VERSION}-7", _build) / "source"


def _build(folder: Path) -> None:
    source = folder / "source"
    shutil.copytree(go_module(MODULE, VERSION), source)
    subprocess.run(["chmod", "-R", "u+w", str(source)], check=True)
    for package in TESTED[:2]:
        for file in (source / package).glob("*_test.go"):
            text = before = file.read_text()
            if (
                file.name == "transaction_test.go"
            ):  # over plain text: its REST calls present nothing, and want a super user here
                text = re.sub(
                    r"URL:\s+webServiceURLTLS,\s+TLSTrustCertsFilePath:.*\s+Authentication:.*", "URL: serviceURL,", text
                )
            for theirs, ours in PLACES:
                text = text.replace(theirs, ours)
            if text != before:
                text = re.sub(r"const \((?=[^)]*where)", "var (", text)
            for alone, always in PATIENT:
                text = text.replace(alone, always)
            for name in TWO_BATCHES:
                text = re.sub(
                    rf"(func {name}\(.*?ProducerOptions\{{)",
                    r"\1 BatchingMaxPublishDelay: time.Second,",
                    text,
                    flags=re.S,
                )
            if text != before:
                file.write_text(text)
        (source / package / "where_test.go").write_text(_WHERE.format(package=package.rpartition("/")[2]))
    admin = source / "pulsaradmin" / "pkg" / "admin"
    named = (admin / "admin.go").read_text()
    (admin / "admin.go").write_text(re.sub(r'\tDefaultWebServiceURL\s+= "http://localhost:8080"\n', "", named))
    (admin / "where.go").write_text(
        'package admin\n\nimport "os"\n\nvar DefaultWebServiceURL = os.Getenv("PULSAR_WEB")\n'
    )
    environment = go_environment(folder)
    environment["GOFLAGS"] += " -mod=mod"
    for package in TESTED:
        made = folder / f"{package.replace('/', '-')}.test"
        command = ["nice", "go", "test", "-vet=off", "-c", "-o", str(made), f"./{package}"]
        subprocess.run(command, cwd=source, env=environment, check=True)
    shutil.rmtree(folder / "modules")
