"""The documentation's recipe for YARN, on a real one: a resource manager and two node managers from Hadoop's own jars,
whose containers are processes here.

Is: spark-submit in cluster mode, with the recipe's words; a batch read and a stream. Isn't: HDFS (folders are shared),
Kerberos, several machines.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.cache import once
from benchmarks.maven import copy_dependencies
from geo_tests.wan.instance import Instance
from tests.system.jvm import SOURCES

pytest.importorskip("pyspark")

from tests.system.spark_setup import SPARK_SUBMIT, our_wheel, python_without_ours, recipes

pytestmark = pytest.mark.system
HADOOP = "3.5.0"
_JARS = (  # beside the cluster what its own jar leaves out
    f"org.apache.hadoop:hadoop-client-minicluster:{HADOOP}",
    "org.junit.jupiter:junit-jupiter-api:5.11.4",
    "org.slf4j:slf4j-reload4j:1.7.36",
    "org.bouncycastle:bcpkix-jdk18on:1.80",
)
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>heliograph.tests</groupId><artifactId>yarn</artifactId><version>1</version>
  <dependencies>
    @JARS@
  </dependencies>
</project>
"""
_JAR = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"

APP = """
import os, sys
from heliograph.spark import session
admin, topic, folder = sys.argv[1:]
spark = session("yarn")
assert spark.sparkContext.master == "yarn" and spark.conf.get("spark.submit.deployMode") == "cluster"
assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Shanghai", "what was submitted stands"
options = {"admin_url": admin, "topic": topic}
rows = spark.read.format("heliograph").schema("id bigint").options(**options, tasks_min="4").load()

def where(rows):
    import heliograph
    return [(row.id, os.environ["CONTAINER_ID"], heliograph.__file__) for row in rows]

found = rows.rdd.mapPartitions(where).collect()
assert sorted(n for n, _, _ in found) == list(range(500)), len(found)
assert all(container in path and "heliograph.zip" in path for _, container, path in found), "each container has our wheel"
stream = spark.readStream.format("heliograph").options(**options, subscription="yarn").load().select("topic")
query = stream.writeStream.format("parquet").option("path", folder + "/out").option("checkpointLocation", folder + "/state")
assert query.trigger(availableNow=True).start().awaitTermination(400)
assert spark.read.parquet(folder + "/out").count() == 500
open(folder + "/done", "w").write(os.environ["CONTAINER_ID"])
spark.stop()
"""  # noqa: E501


def jars() -> Path:
    """Hadoop's own cluster for tests, of the version of Spark's client. Skips in one sentence where it cannot be
    had.
    """

    def fetch(scratch: Path) -> None:
        if shutil.which("java") is None or shutil.which("mvn") is None:
            pytest.skip("a YARN cluster needs a JDK 17 or newer and Maven on this machine to be fetched; one is absent")
        pom = scratch / "pom.xml"
        pom.write_text(_POM.replace("@JARS@", "\n    ".join(_JAR.format(*jar.split(":")) for jar in _JARS)))
        try:
            copy_dependencies(pom, scratch)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"Hadoop's cluster for tests cannot be fetched by Maven here: {error.stdout.strip()[-200:]}")

    return once(f"hadoop-minicluster-{HADOOP}", fetch)


@contextmanager
def yarn(folder: Path) -> Iterator[Path]:
    """The folder of its settings, for HADOOP_CONF_DIR."""
    conf = folder / "conf"
    conf.mkdir()
    command = ["java", "-Xmx512m", "-cp", f"{jars()}/*", str(SOURCES / "YarnCluster.java"), str(conf)]
    with (folder / "yarn.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=folder)
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n", (
                folder / "yarn.log"
            ).read_text()[-3000:]
            yield conf
        finally:
            try:
                process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def said(folder: Path) -> str:
    """What drivers printed, for who looks why one failed."""
    return "".join(
        path.read_text(errors="replace")[-2000:] for path in folder.glob("target/**/container_*_000001/std???")
    )


@pytest.mark.timeout(2000)
def test_the_recipe_for_yarn_runs(tmp_path: Path) -> None:
    python_without_ours(tmp_path / "env")
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "env", ".")
    our_wheel(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "shared").mkdir()
    topic = "persistent://public/geo/yarn"
    memory = (
        "--driver-memory",
        "600m",
        "--executor-memory",
        "600m",
        "--conf",
        "spark.yarn.maxAppAttempts=1",
        "--conf",
        "spark.executor.instances=2",
    )
    here = (
        f"spark.yarn.jars=local:{SPARK_SUBMIT.parent.parent}/jars/*",
        f"spark.yarn.stagingDir=file://{tmp_path}/staging",
    )
    given = [
        *memory,
        *(word for each in (*here, "spark.sql.session.timeZone=Asia/Shanghai") for word in ("--conf", each)),
    ]
    instance = Instance(tmp_path / "data", regions=("us",), wan="none")
    try:
        instance.namespace("public/geo", ["us"])
        producer = instance.client("us").create_producer(
            topic, batching_enabled=True, batching_max_messages=50, block_if_queue_full=True
        )
        for n in range(500):
            producer.send_async(b'{"id": %d}' % n, None)
        producer.flush()
        with yarn(tmp_path) as conf:
            hidden = {"SPARK_HOME", "PYTHONPATH", "PYSPARK_DRIVER_PYTHON"}
            env = {key: value for key, value in os.environ.items() if key not in hidden}
            env |= {"HADOOP_CONF_DIR": str(conf), "PYSPARK_PYTHON": "./env/bin/python"}
            command = [
                str(SPARK_SUBMIT),
                *given,
                *recipes()["yarn"],
                instance.admin("us"),
                topic,
                str(tmp_path / "shared"),
            ]
            done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=1500)
        assert done.returncode == 0, done.stderr[-2000:] + said(tmp_path)
        assert (tmp_path / "shared" / "done").read_text().endswith("_000001"), "the driver was a container"
    finally:
        instance.down()
