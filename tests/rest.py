"""Iceberg's own REST catalog server for the tests, behind a proxy that can lose the answer to a commit.

Iceberg publishes it in parts, for tests of other programs, with a JDBC catalog behind it. `python tests/rest.py`
fetches the parts by coordinates, with the resolver that Spark brings; each is pinned by its checksum. (Nessie, a single
jar, shows only the newest snapshot of a table: it cannot be a lake.)
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
import pytest

from floodmark.files import advisory_lock
from floodmark.lake.jars import FOR, JARS, S3, jar_directory, ready_jars
from s3 import SECRET, Reply, Request, S3Server, free_port, scripted, wait_for

PARTS = Path(__file__).with_name("rest_catalog.lock")
OF_SPARK = ("slf4j-api", "hadoop-client", "avro-1", "jackson-[acd]*-2", "aircompressor", "RoaringBitmap")
"""What PySpark has of the rest."""
COMMIT = re.compile(r"/v1/namespaces/[^/]+/tables/[^/]+")
LOST, UNSENT = 0, -1


@dataclass
class RestCatalog:
    """A running catalog, whose tables are in a bucket."""

    server: int
    bucket: str
    uri: str = ""
    fates: list[int] = field(default_factory=list)
    """What becomes of the next commits: `LOST` is made and its answer lost, `UNSENT` never arrives, and any other is
    made and answered with that status.
    """

    def answer(self, request: Request) -> Reply:
        fate = None
        if request.method == "POST" and COMMIT.fullmatch(request.path) and self.fates:
            fate = self.fates.pop(0)
        if fate == UNSENT:
            return Reply(0)
        reply = self._forwarded(request)
        if fate is None:
            return reply
        assert reply.status == 200, f"a commit that was to land was answered with {reply.status}: {reply.body!r}"
        told = b'{"error": {"message": "as the proxy says", "type": "CommitFailedException", "code": %d}}' % fate
        return Reply(fate, told if fate else b"", {"Content-Type": "application/json"})

    def _forwarded(self, request: Request) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.server, timeout=60)
        headers = {key: value for key, value in request.headers.items() if key not in ("host", "connection")}
        try:
            connection.request(request.method, request.path, request.body, headers)
            found = connection.getresponse()
            kept = {key: found.headers[key] for key in ("Content-Type", "Content-Encoding") if key in found.headers}
            return Reply(found.status, found.read(), kept)
        finally:
            connection.close()


@pytest.fixture(scope="session")
def rest_catalog(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    with running(tmp_path_factory.mktemp("rest"), s3_server) as found, scripted(found.answer) as proxy:
        found.uri = proxy.endpoint
        yield found


@contextmanager
def running(home: Path, s3: S3Server) -> Iterator[RestCatalog]:
    port, bucket = free_port(), s3.create_bucket()
    # The server takes its settings from the environment, where `_` stands for a dot and `__` for a dash.
    settings = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_URI": f"jdbc:sqlite:{home / 'catalog.db'}?busy_timeout=60000",
        "CATALOG_WAREHOUSE": f"s3://{bucket}/rest",
        "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "CATALOG_S3_ENDPOINT": s3.endpoint,
        "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        "CATALOG_S3_ACCESS__KEY__ID": "AKIDEXAMPLE",
        "CATALOG_S3_SECRET__ACCESS__KEY": SECRET,
        "CATALOG_CLIENT_REGION": "us-east-1",
    }
    options = ["-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    process = subprocess.Popen(
        [java(), *options, "-cp", class_path(), "org.apache.iceberg.rest.RESTCatalogServer"],
        stdin=subprocess.DEVNULL,
        stdout=(home / "rest.log").open("wb"),
        stderr=subprocess.STDOUT,
        env={**os.environ, **settings},
    )
    try:
        wait_for(port, process)
        yield RestCatalog(port, bucket)
    finally:
        process.terminate()
        process.wait(timeout=30)


# ── the server's parts ───────────────────────────────────────────────────────────────────────────────────────────────


def class_path() -> str:
    of_spark = Path(pyspark.__file__).parent / "jars"
    bundle, driver = FOR[S3].file_name, next(jar.file_name for jar in JARS if jar.artifact == "sqlite-jdbc")
    ready = [path for path in ready_jars(needs=[S3]) if path.name in (bundle, driver)]
    shared = [path for name in OF_SPARK for path in sorted(of_spark.glob(f"{name}*.jar"))]
    return os.pathsep.join(map(str, [*fetched(), *ready, *shared]))


@functools.cache
def fetched() -> tuple[Path, ...]:
    """The server's parts, each with the pinned content."""
    parts = [Part(*line.split()) for line in PARTS.read_text().splitlines()]
    directory = jar_directory() / "rest-catalog"
    directory.mkdir(parents=True, exist_ok=True)
    with advisory_lock(directory / ".lock", wait_seconds_max=600) as alone:
        assert alone, "another process fetches the REST catalog server, and does not finish"
        missing = [part for part in parts if not part.is_good(directory)]
        if missing:
            _resolve(missing, directory)
    assert all(part.is_good(directory) for part in parts), f"{directory} has other parts than those of the tests"
    return tuple(directory / part.file_name for part in parts)


@dataclass(frozen=True)
class Part:
    sha256: str
    coordinate: str

    @property
    def file_name(self) -> str:
        return "-".join(self.coordinate.split(":")[1:]) + ".jar"

    @property
    def module(self) -> tuple[str, str, str]:
        group, artifact, version, *_ = self.coordinate.split(":")
        return group, artifact, version

    @property
    def artifact(self) -> str:
        _, artifact, _, *classifier = self.coordinate.split(":")
        which = f' m:classifier="{classifier[0]}"' if classifier else ""
        return f'<artifact name="{artifact}" type="jar"{which}/>'

    def is_good(self, directory: Path) -> bool:
        file = directory / self.file_name
        return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == self.sha256


def _resolve(parts: list[Part], directory: Path) -> None:
    """By Ivy itself: Spark's `spark.jars.packages` takes no classifier."""
    ivy = Path(pyspark.__file__).parent / "jars"
    with tempfile.TemporaryDirectory(prefix="rest-catalog-") as scratch:
        wanted = Path(scratch) / "ivy.xml"
        wanted.write_text(
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="t" module="t"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{''.join(_dependencies(parts))}</dependencies></ivy-module>"
        )
        command = [java(), "-cp", os.pathsep.join(map(str, [*ivy.glob("ivy-*.jar"), *ivy.glob("commons-cli-*.jar")]))]
        command += ["org.apache.ivy.Main", "-ivy", str(wanted), "-cache", f"{scratch}/cache", "-retrieve"]
        pattern = f"{scratch}/found/[artifact]-[revision](-[classifier]).[ext]"
        done = subprocess.run([*command, pattern], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"the REST catalog server could not be fetched:\n{done.stdout}\n{done.stderr}"
        for part in parts:
            shutil.move(f"{scratch}/found/{part.file_name}", directory / part.file_name)


def _dependencies(parts: list[Part]) -> Iterator[str]:
    """One for each module, with the artifacts that are wanted of it."""
    for group, artifact, version in dict.fromkeys(part.module for part in parts):
        wanted = "".join(part.artifact for part in parts if part.module == (group, artifact, version))
        yield f'<dependency org="{group}" name="{artifact}" rev="{version}" transitive="false" conf="default->*">'
        yield f"{wanted}</dependency>"


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


if __name__ == "__main__":
    fetched()
