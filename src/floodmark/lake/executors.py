"""Spark's executors, which may be on other machines: what our tasks find there, and what the absence of it looks like.

Executors have a Python and jars of their own. A task whose Floodmark is another version could store rows in another
way, so each task compares it first. Whatever is missing there arrives here as a long trace of another language; it is
reported as one sentence.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from floodmark.errors import EnvironmentProblem

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

PYTHON_SETTING = "spark.pyspark.python"
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
PROBES = 16
"""How many tasks ask the executors about their Python: more than one for each executor of a small cluster."""
_GUIDE = "See “Run Spark on a cluster” in docs/how-to/scale-out.md."
_PYTHON = (
    "Install the same version of floodmark in the Python of every executor, and name that Python in PYSPARK_PYTHON or "
    f"in {PYTHON_SETTING} of [spark.settings]; for Spark Connect, in PYSPARK_PYTHON of the server. {_GUIDE}"
)
_JARS = (
    "Print the jars with `floodmark jars --for s3 --for postgresql`. For Spark Connect, start the server with them in "
    f"spark.jars; on a cluster they are sent along. {_GUIDE}"
)
_SIGNS: tuple[tuple[str, str, str], ...] = (
    (r"(floodmark \S+ on the executor, \S+ here)", "Spark's executors have another version of Floodmark: {}.", _PYTHON),
    (
        r"Can't get attribute .* on <module '(floodmark[\w.]*)'",
        "Spark's executors have another version of {}.",
        _PYTHON,
    ),
    (
        r"No module named '([\w.]+)'",
        "The Python of Spark's executors does not have the module {!r}.",
        f"{_PYTHON} A module of your own must be installed there too.",
    ),
    (
        r"PYTHON_VERSION_MISMATCH\] Python in worker has different version: (\S+)",
        "Spark's executors run Python {}, which is not the version of this process.",
        _PYTHON,
    ),
    (r'Cannot run program "([^"]*python[^"]*)"', "Spark's executors do not have the program {!r}.", _PYTHON),
    (
        r"(?:plugin class|ClassNotFoundException|NoClassDefFoundError)[^\n]*?(org[./]apache[./]iceberg[\w./$]*)",
        "Spark does not have the Iceberg runtime ({} is missing).",
        _JARS,
    ),
    (
        r"(?:ClassNotFoundException|NoClassDefFoundError)[^\n]*?(software[./]amazon[./][\w./$]*)",
        "Spark does not have Iceberg's S3 client ({} is missing).",
        _JARS,
    ),
    (
        r"PARSE_SYNTAX_ERROR\] Syntax error at or near '(WRITE)'",
        "The Spark session was started without Iceberg's extensions: it does not know {} ORDERED BY.",
        f"Start it with spark.sql.extensions={EXTENSIONS}. {_GUIDE}",
    ),
    (
        r"No suitable driver found for (jdbc:\w+)",
        "Spark does not have the driver of the catalog's database ({}).",
        _JARS,
    ),
)
"""What an error contains, what it means, and what to do."""


def begin_task(version: str) -> None:
    """The first call of each of our tasks. `version` is that of the process which sent it."""
    own = installed()
    if own and version and own != version:
        raise RuntimeError(f"floodmark {own} on the executor, {version} here")
    _skip_rereading_of_archives()


@cache
def installed() -> str:
    """The version of Floodmark in this Python; empty if it was sent along as a bare archive, which does not tell."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("floodmark")
    except PackageNotFoundError:
        return ""


def _skip_rereading_of_archives() -> None:
    """Let this worker's next tasks start at once.

    Before each task a worker forgets what it knows about importable modules, and Python 3.11 then reads the directory
    of every archive on its path again, Spark's own jar among them: half a second for a task that takes a tenth.
    """
    import zipimport

    zipimport.zipimporter.invalidate_caches = _nothing  # type: ignore[method-assign, assignment]  # on purpose


def _nothing(_: object) -> None:
    """The archives on a worker's path do not change while it lives."""


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raise `EnvironmentProblem` where Spark or its executors lack something; leave every other error as it is.

    A job that failed so has committed nothing: its tasks did not run.
    """
    try:
        yield
    except Exception as error:
        problem = missing_there(str(error))
        if problem is None:
            raise
        raise problem from error


def missing_there(text: str) -> EnvironmentProblem | None:
    """What an error of Spark says is missing; None if it is about something else."""
    for sign, meaning, hint in _SIGNS:
        found = re.search(sign, text)
        if found is not None:
            return EnvironmentProblem(meaning.format(found[1].rstrip(".")), hint=f"Nothing was committed. {hint}")
    return None


def python_there(spark: SparkSession) -> str:
    """Which Python and which Floodmark the executors have, asked by tasks; `EnvironmentProblem` if they do not fit."""
    version = installed()

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # sent as it is: it needs nothing there
        import platform

        import pyarrow as pa

        from floodmark.lake.executors import begin_task as begin

        begin(version)
        for _ in batches:
            yield pa.record_batch({"python": [platform.python_version()], "host": [platform.node()]})

    asked = spark.range(PROBES, numPartitions=PROBES).mapInArrow(look, "python string, host string")
    with explained():
        found = {(row["host"], row["python"]) for row in asked.collect()}
    hosts = len({host for host, _ in found})
    kinds = ", ".join(sorted({python for _, python in found}))
    return f"Python {kinds} with floodmark {version} on {hosts} {'host' if hosts == 1 else 'hosts'}"
