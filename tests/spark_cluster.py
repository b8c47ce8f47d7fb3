"""A Spark cluster of real processes, from the classes in PySpark's own jars: a master, workers, a Connect server.

Executors are processes of their own, in another mount namespace where the system allows it: there the directory with
the stores is empty. Each worker is another host, as far as Spark can tell: it has a loopback address of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
import pytest

from floodmark.lake.jars import jar_directory, ready_jars
from s3 import free_port, wait_for
from waiting import wait_until

HOME = Path(pyspark.__file__).parent
ON_EXECUTORS = Path(__file__).parent / "acceptance" / "on_executors.py"
HOSTS = ("127.0.0.1", "127.0.0.2")
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""These JVMs live for a minute: making their code fast costs more than it saves."""
EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": JAVA,
    "spark.cores.max": "2",
    "spark.log.level": "WARN",
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.task.duration.threshold": "4s",
}
"""One small executor on each worker. A task that takes long is also run on the other."""
SMALL_JOBS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""For a few rows, compiling and planning a job takes longer than running it."""
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_HIDE = 'mount -t tmpfs none "$0" && exec "$@"'
WAIT_SECONDS = 120


@dataclass
class Executors:
    """The executors below some processes, and what is to happen to them."""

    folder: Path
    stores: Path
    """What they do not see: the directory with the stores."""
    above: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.strikes.mkdir()
        (self.folder / "python").mkdir()
        shutil.copy(ON_EXECUTORS, self.folder / "python" / "sitecustomize.py")  # the name that Python imports by itself

    @property
    def strikes(self) -> Path:
        """What is to happen to executors: see `acceptance/on_executors.py`."""
        return self.folder / "strikes"

    def strike(self, point: str, deed: str) -> None:
        """The next task that reaches a fault point does it, once."""
        for left in self.strikes.glob(f"{point}.*"):
            left.unlink()
        (self.strikes / point).write_text(deed)

    def struck(self, point: str) -> bool:
        return not (self.strikes / point).exists() and (self.strikes / f"{point}.done").exists()

    @property
    def noted(self) -> list[str]:
        """What Python on executors did that it should not do."""
        with contextlib.suppress(FileNotFoundError):
            return (self.strikes / "noted").read_text().splitlines()
        return []

    def command(self, *words: str) -> list[str]:
        """A command whose process does not see the directory with the stores, where the system can do that."""
        hidden = ["unshare", "--mount", "sh", "-c", _HIDE, str(self.stores)] if may_hide(self.stores) else []
        return [*hidden, *words]

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.folder / "python"), "STRIKES": str(self.strikes)}

    @property
    def ids(self) -> list[int]:
        """The ids of the executors' JVMs."""
        return [pid for worker in self.above for pid in children(worker.pid) if b"CoarseGrainedExecutor" in words(pid)]


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *children(child)]
    return found


def words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def may_hide(folder: Path) -> bool:
    """Whether a process can have a directory of its own in another's place."""
    asked = ["unshare", "--mount", "sh", "-c", _HIDE, str(folder), "true"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def environment(**more: str) -> dict[str, str]:
    """Of a machine of the cluster: none of what this process knows about stores and databases."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "FLOODMARK", "SPARK"))}
    return {**own, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "160m", "SPARK_DAEMON_JAVA_OPTS": JAVA, **more}


def start(folder: Path, name: str, command: list[str], **more: str) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as said:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )


def wait_for_words(folder: Path, name: str, text: str, process: subprocess.Popen[bytes]) -> None:
    log = folder / f"{name}.log"

    def said() -> bool:
        if process.poll() is not None:
            pytest.fail(f"{name} ended with {process.returncode}: {log.read_text()[-3000:]}")
        return text in log.read_text(errors="replace")

    wait_until(said, seconds_max=WAIT_SECONDS, look_seconds=0.1, story=lambda: log.read_text()[-3000:])


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


@contextlib.contextmanager
def standalone(folder: Path, stores: Path) -> Iterator[tuple[str, Executors]]:
    """A master and a worker on each host: the address of the master, and the executors to be."""
    executors, port = Executors(folder, stores), free_port()
    launcher, address = str(HOME / "bin" / "spark-class"), f"spark://{HOSTS[0]}:{port}"
    listen = ["--host", HOSTS[0], "--port", str(port), "--webui-port", "0"]
    master = start(folder, "master", [launcher, "org.apache.spark.deploy.master.Master", *listen])
    try:
        wait_for_words(folder, "master", "I have been elected leader", master)
        for number, host in enumerate(HOSTS):
            name = f"worker-{number}"
            own = ["--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0"]
            place = ["--work-dir", str(folder / name), address]
            command = executors.command(launcher, "org.apache.spark.deploy.worker.Worker", *own, *place)
            worker = start(folder, name, command, **executors.environment, SPARK_LOCAL_IP=host)
            executors.above.append(worker)
        for number, worker in enumerate(executors.above):
            wait_for_words(folder, f"worker-{number}", "Successfully registered with master", worker)
        yield address, executors
    finally:
        stop([master, *executors.above])


class ConnectServer:
    """A Spark Connect server, which sees no more of the stores than its executors do.

    They are processes of their own (`local-cluster`): master and workers are in the server's JVM.
    """

    def __init__(self, folder: Path, stores: Path) -> None:
        self.executors, self._port, self._starts = Executors(folder, stores), free_port(), 0
        self._home = folder / "spark"  # its workers keep their files in it
        self._home.mkdir()
        for part in HOME.iterdir():
            (self._home / part.name).symlink_to(part)
        settings = {
            **EXECUTORS,
            **SMALL_JOBS,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.jars": ",".join(map(str, ready_jars(jar_directory(), needs=["s3", "postgresql"]))),
            "spark.sql.extensions": EXTENSIONS,
            "spark.ui.enabled": "false",
        }
        given = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        words_ = [str(self._home / "bin" / "spark-submit"), *server, "--master", "local-cluster[2,1,512]", *given]
        self._command = self.executors.command(*words_, "spark-internal")
        self.start()

    @property
    def remote(self) -> str:
        return f"sc://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._starts += 1
        name, options = f"connect-{self._starts}", f"{JAVA} -XX:ReservedCodeCacheSize=256m"
        more = {"SPARK_HOME": str(self._home), "SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable}
        more |= {**self.executors.environment, "SPARK_DAEMON_MEMORY": "640m"}  # for spark-submit it is a daemon
        process = start(self.executors.folder, name, self._command, **more)
        self.executors.above = [process]
        wait_for(self._port, process)

    def kill(self) -> None:
        stop(self.executors.above)


def ports(pid: int) -> set[int]:
    """The ports of other processes that a process has a connection to."""
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(link.readlink()))
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if f"socket:[{fields[9]}]" in own:
                found.add(int(fields[2].rpartition(":")[2], 16))
    return found
