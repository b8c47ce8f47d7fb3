"""The jars that Spark needs to speak Iceberg, fetched once and checked, and the archive of their classes beside them.

They are resolved by their coordinates with Spark's own resolver, so mirrors and proxies that are set up for
Spark apply here too. Sessions then start from files: offline, and without the resolver's ten seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from floodmark.errors import EnvironmentProblem
from floodmark.files import durable_write, make_directory, sync_directory, sync_file
from floodmark.lake.java import check_java, java_build


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar, pinned by content."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinate(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


JARS = (
    Jar(
        "org.apache.iceberg",
        "iceberg-spark-runtime-4.1_2.13",
        "1.12.0",
        "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    ),
    Jar(
        "org.xerial",
        "sqlite-jdbc",
        "3.50.3.0",
        "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
    ),
)

S3, POSTGRESQL = "s3", "postgresql"
FOR = {
    S3: Jar(
        "org.apache.iceberg",
        "iceberg-aws-bundle",
        "1.12.0",
        "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
    ),
    POSTGRESQL: Jar(
        "org.postgresql",
        "postgresql",
        "42.7.14",
        "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c",
    ),
}
"""What a lake elsewhere needs besides: Iceberg's S3 client, and the driver of a SQL catalog on PostgreSQL."""

TELL_SECONDS = 2.0
"""How often a download says how far it is."""
CHECKED_FILE = "checked.json"
"""Which files were read and found good: their pinned checksum, size, times and inode."""


def jar_directory() -> Path:
    """Where the jars are kept: `FLOODMARK_JARS`, else the user's cache."""
    named = os.environ.get("FLOODMARK_JARS")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "floodmark" / "jars"


def ready_jars(directory: Path | None = None, *, needs: Collection[str] = ()) -> list[Path]:
    """The jars' paths, each with the pinned content, fetching what is missing. `needs` names some of `FOR`."""
    directory = directory or jar_directory()
    if missing_jars(directory, needs=needs):
        fetch(directory, needs=needs)
    return checked_jars(directory, needs=needs)


def missing_jars(directory: Path, *, needs: Collection[str] = ()) -> list[str]:
    """The names of the jars that are not there yet."""
    return [jar.file_name for jar in _named(needs) if not (directory / jar.file_name).is_file()]


def checked_jars(directory: Path, *, needs: Collection[str] = ()) -> list[Path]:
    """The jars' paths, each with the pinned content; nothing is fetched."""
    jars = _named(needs)
    _check_content(directory, jars)
    return [directory / jar.file_name for jar in jars]


def _named(needs: Collection[str]) -> list[Jar]:
    return [*JARS, *(jar for name, jar in FOR.items() if name in needs)]


def _check_content(directory: Path, jars: list[Jar]) -> None:
    """Refuse a jar with another content. Each is read once, and then again only if the file has changed."""
    record = directory / CHECKED_FILE
    known = _known(record)
    checked = dict(known)
    for jar in jars:
        path = directory / jar.file_name
        status = path.stat()
        # The change time as well: a copy may keep the modification time.
        state = [jar.sha256, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        if known.get(jar.file_name) != state and not _is_good(path, jar):
            raise EnvironmentProblem(
                f"{path} is not the jar that this version was tested with (its checksum differs).",
                hint="Run `floodmark jars`: it fetches the jar again.",
            )
        checked[jar.file_name] = state
    if checked != known:
        # A directory that cannot be written to costs a tenth of a second at each start, and nothing else.
        with contextlib.suppress(OSError):
            durable_write(record, json.dumps(checked).encode())


def _known(record: Path) -> dict[str, list[object]]:
    try:
        found = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def fetch(directory: Path, *, needs: Collection[str] = ()) -> list[Path]:
    """Resolve and copy the jars; every file is checked against its pinned checksum before it gets its name."""
    check_java()
    jars = _named(needs)
    missing = [jar for jar in jars if not _is_good(directory / jar.file_name, jar)]
    if missing:
        make_directory(directory)
        with tempfile.TemporaryDirectory(prefix="floodmark-jars-") as scratch:
            _say(f"Downloading {len(missing)} jars for Spark to {directory}, once …")
            _resolve(missing, Path(scratch))
            for jar in missing:
                _install(jar, Path(scratch), directory)
    return [directory / jar.file_name for jar in jars]


def _resolve(jars: list[Jar], scratch: Path) -> None:
    """Let Spark's resolver download the coordinates into a scratch directory."""
    script = (
        "import sys\n"
        "from pyspark.sql import SparkSession\n"
        "SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')"
        ".config('spark.jars.packages', sys.argv[1]).config('spark.jars.ivy', sys.argv[2]).getOrCreate().stop()\n"
    )
    coordinates = ",".join(jar.coordinate for jar in jars)
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", script, coordinates, str(scratch)], stdout=output, stderr=output, text=True
        )
        begun = shown = time.monotonic()
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
                if time.monotonic() - shown >= TELL_SECONDS:
                    shown = time.monotonic()
                    _say(f"  {_downloaded(scratch) / 1e6:.0f} MB after {shown - begun:.0f} s")
        finally:  # also if it is interrupted: nothing is left running
            if process.poll() is None:
                process.kill()
                process.wait()
        output.seek(0)
        said = output.read()
    if process.returncode != 0:
        raise EnvironmentProblem(
            f"The Spark jars could not be fetched ({_reason(said)}).",
            hint="Check the network or your Maven mirror and run `floodmark jars` again; on a machine without network "
            "copy the directory from one that has them and set FLOODMARK_JARS to it.",
        )


def _say(text: str) -> None:
    """The command line shows this log: the first start of Spark may take a minute more."""
    logging.getLogger("floodmark.jars").info(text)


def _downloaded(scratch: Path) -> int:
    """How many bytes are there by now; a file may get its last name meanwhile."""
    total = 0
    for path in (scratch / "cache").rglob("*.jar*"):  # from there they are copied
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines()]
    for word in ("unresolved dependency", "not found", "UnknownHost", "Exception"):
        for line in lines:
            if word in line:
                return line[:200]
    return "the resolver failed without a reason"


def _install(jar: Jar, scratch: Path, directory: Path) -> None:
    found = scratch / "jars" / f"{jar.group}_{jar.file_name}"
    if not _is_good(found, jar):
        raise EnvironmentProblem(
            f"The jar {jar.coordinate} is not the one this version was tested with (checksum differs).",
            hint="Check which mirror serves it; Floodmark does not run with it.",
        )
    temporary = directory / f".{jar.file_name}.{os.getpid()}.tmp"
    shutil.copyfile(found, temporary)
    sync_file(temporary)
    temporary.rename(directory / jar.file_name)
    sync_directory(directory)


def _is_good(path: Path, jar: Jar) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256


# ── the class archive ────────────────────────────────────────────────────────────────────────────────────────────────
# Spark's classes, loaded and checked once, in a file that every JVM maps into its memory.
#
# About half of what a session's start costs is the JVM reading some fifteen thousand classes. The archive spares it
# that. It fits one build of Java and one set of jars; the JVM checks both, and ignores it where they differ.


def archive_file(directory: Path | None = None) -> Path:
    """Where the archive for this Java and this Spark is kept: beside the jars."""
    import pyspark

    spark = Path(pyspark.__file__).resolve().parent
    fits = hashlib.blake2b(f"{java_build()} {spark}".encode(), digest_size=6).hexdigest()
    return (directory or jar_directory()) / f"spark-{pyspark.__version__}-{fits}.jsa"


def archive_options() -> list[str]:
    """The JVM options that use the archive, if there is one."""
    file = archive_file()
    if not file.is_file() or " " in str(file):  # Spark splits the options at blanks
        return []
    return [f"-XX:SharedArchiveFile={file}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
