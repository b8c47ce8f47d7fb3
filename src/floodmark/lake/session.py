"""The Spark session: one per process, started when a data path first needs it and not before."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.lake.classes import archive_options
from floodmark.lake.jars import ready_jars
from floodmark.lake.java import check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_starting = threading.Lock()
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOGGING = Path(__file__).with_name("log4j2.properties")

_SETTINGS = {
    "spark.app.name": "floodmark",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "localhost",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
    # A column that ANSI mode cannot convert must fail the commit, never become null.
    "spark.sql.ansi.enabled": "true",
    # Without it a union of one-partition frames collapses into one partition.
    "spark.sql.unionOutputPartitioning": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
}


def start_session(*, master: str, settings: Mapping[str, str]) -> SparkSession:
    """The process's session: the one that is active already, or a new local one.

    A session that the application made (on a cluster, or over Spark Connect) is used as it is: it must have the
    Iceberg runtime on its class path.
    """
    from pyspark.sql import SparkSession

    with _starting:
        active = SparkSession.getActiveSession()
        if active is not None:
            return active
        check_java()
        # PySpark prints every failed statement with its Java stack. We raise the error, and say it in a sentence.
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the workers use another interpreter
        builder = SparkSession.builder.master(master)
        for key, value in {**_SETTINGS, **settings}.items():
            builder = builder.config(key, value)
        asked = settings.get(_JAVA_OPTIONS, "")
        own = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", *archive_options()]
        builder = builder.config(_JAVA_OPTIONS, " ".join([*own, asked]).strip())
        # `spark.jars`, not `spark.jars.packages`: the latter puts 47 MB on every Python worker's path.
        builder = builder.config("spark.jars", ",".join(str(path) for path in ready_jars()))
        return builder.getOrCreate()


def end_session(session: SparkSession) -> None:
    """Stop a session and wait until its JVM has ended, which otherwise happens some time after this process has."""
    from pyspark import SparkContext

    session.stop()
    gateway = SparkContext._gateway  # noqa: SLF001 - nobody else knows
    process = getattr(gateway, "proc", None)
    if gateway is not None and process is not None:
        gateway.shutdown()
        process.stdin.close()
        process.wait()


def session_lost() -> bool:
    """Whether the JVM that this process started has ended under it. PySpark does not come back from that.

    Starts nothing, and knows nothing of a session that runs elsewhere.
    """
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - nobody else knows
    return process is not None and process.poll() is not None
