"""The Spark session: one per process, started when a data path first needs it and not before."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.errors import EnvironmentProblem, InvalidSetting, Retryable, reason_of
from floodmark.lake.executors import EXTENSIONS, PYTHON_SETTING
from floodmark.lake.jars import archive_options, ready_jars
from floodmark.lake.java import check_java
from floodmark.lake.sparklog import SparkLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_starting = threading.Lock()
_own: list[SparkSession] = []
"""The sessions that were started here, with settings of ours."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_JARS = "spark.jars"
_POOL = "spark.scheduler.pool"
ASKED_AGAIN_MAX = 7
"""How often a Spark Connect server that does not answer is asked again: for about a quarter of a minute."""
_LOGGING = Path(__file__).with_name("log4j2.properties")

_SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    # A column that ANSI mode cannot convert must fail the commit, never become null.
    "spark.sql.ansi.enabled": "true",
    # Without it a union of one-partition frames collapses into one partition.
    "spark.sql.unionOutputPartitioning": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
}
"""Settings of a session, wherever it runs."""
_SETTINGS = {
    **_SESSION,
    "spark.app.name": "floodmark",
    # A commit's one task must not wait until every task of a compaction has begun: see `beside_commits`.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.extensions": EXTENSIONS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "localhost",
    "spark.driver.bindAddress": "127.0.0.1",
}

_CLUSTER = {
    # Executors on other hosts call the driver back; Spark finds the name that they can reach it by.
    "spark.driver.host": None,
    "spark.driver.bindAddress": None,
    # Small jobs: a task that waits three seconds for the best place would be the longest part of a commit.
    "spark.locality.wait": "0",
}
"""How a session on a cluster differs; None: Spark's own default."""

_UNUSABLE = {
    "spark.sql.legacy.timeParserPolicy": ("LEGACY", "times would lose their microseconds", "CORRECTED"),
    "spark.sql.storeAssignmentPolicy": ("LEGACY", "Spark cannot write to Iceberg tables with it", "ANSI"),
}
"""Settings under which nothing is committed: the value, why, and which one to set."""

_AT_START = (
    "spark.master",
    "spark.driver.",
    "spark.jars",
    "spark.files",
    "spark.archives",
    "spark.submit.",
    "spark.kerberos.",
    "spark.kubernetes.",
    "spark.yarn.",
)
"""Settings that have an effect only when the JVM starts."""
_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)  # as Spark itself recognises one


def start_session(
    *,
    master: str,
    settings: Mapping[str, str],
    log: Path | None = None,
    remote: str = "",
    needs: Collection[str] = (),
) -> SparkSession:
    """The process's session: the one that is active already, or a new one, whose own words go to `log`.

    A session that the application made (on a cluster, or over Spark Connect) is used unchanged: it must have the
    Iceberg runtime on its class path. `remote` is a Spark Connect server, which has its own JVM, jars and settings;
    `needs` names further jars for a session of ours.
    """
    from pyspark.sql import SparkSession

    with _starting:
        active = SparkSession.getActiveSession()
        if active is not None:
            return active
        if remote:
            return _connected(remote, settings)
        check_java()
        # PySpark prints every failed statement with its Java stack. We raise the error, and say it in a sentence.
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        # The Python of the workers, which on other machines may be elsewhere than here. Spark takes it from the
        # environment of this process, and from no setting.
        os.environ.setdefault("PYSPARK_PYTHON", settings.get(PYTHON_SETTING) or sys.executable)
        asked = settings.get(_JAVA_OPTIONS, "")
        jars = [*map(str, ready_jars(needs=needs)), *filter(None, settings.get(_JARS, "").split(","))]
        own = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", *archive_options()]
        given: dict[str, str | None] = {
            "spark.master": master,
            **_SETTINGS,
            **({} if _is_local(master) else _CLUSTER),
            **settings,
            _JAVA_OPTIONS: " ".join([*own, asked]).strip(),
            # `spark.jars`, not `spark.jars.packages`: the latter puts 47 MB on every Python worker's path.
            _JARS: ",".join(jars),
        }
        whole = {key: value for key, value in given.items() if value is not None}
        _launch({key: value for key, value in whole.items() if _may_be_seen(key)}, log)
        builder = SparkSession.builder
        for key, value in whole.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        _own.append(session)
        return session


def _connected(remote: str, settings: Mapping[str, str]) -> SparkSession:
    """A session on a Spark Connect server. No JVM is started here, and only settings of a session have an effect."""
    from pyspark.sql import SparkSession

    try:
        from pyspark.sql.connect.client.retries import DefaultPolicy

        session = SparkSession.builder.remote(remote).create()
        # PySpark's own policy asks a server that does not answer for ten minutes.
        session.client.set_retry_policies([DefaultPolicy(max_retries=ASKED_AGAIN_MAX, max_backoff=5_000)])
        extensions = session.conf.get("spark.sql.extensions", "")
    except ImportError as error:
        raise EnvironmentProblem(
            f"Spark Connect needs a package that is not installed: {reason_of(error)}.",
            hint="Install it: pip install 'floodmark[connect]'.",
        ) from error
    except Exception as error:
        raise Retryable(
            f"The Spark Connect server of spark.remote does not answer: {reason_of(error)}.",
            hint="Check that it runs, and that its version of Spark is the one that is installed here.",
        ) from error
    if EXTENSIONS not in (extensions or ""):
        session.stop()
        raise EnvironmentProblem(
            "The Spark Connect server of spark.remote was started without Iceberg's extensions.",
            hint=f"Start it with spark.sql.extensions={EXTENSIONS} and the jars that `floodmark jars` prints.",
        )
    for key, value in {**_SESSION, **settings}.items():
        if key.startswith(_AT_START):
            continue  # of a JVM that is started here, and none is
        try:
            session.conf.set(key, value)
        except Exception as error:
            session.stop()
            raise InvalidSetting(
                f"spark.settings: {key} cannot be set in a session of a Spark Connect server: {reason_of(error)}.",
                hint="Remove it here, and start the server with it.",
            ) from error
    return session


@contextlib.contextmanager
def beside_commits(session: SparkSession) -> Iterator[None]:
    """Jobs of maintenance: they take turns with all others. In one pool Spark first starts every task of the older job.

    Only in a session of ours: in an application's, who shares with whom is its own affair.
    """
    if not is_own(session):
        yield
        return
    context = session.sparkContext
    before = context.getLocalProperty(_POOL)
    context.setLocalProperty(_POOL, "maintenance")
    try:
        yield
    finally:
        context.setLocalProperty(_POOL, before)


def is_lost(session: SparkSession, *, ask: bool) -> bool:
    """Whether a session of a Spark Connect server exists no more: it was not used for an hour, or the server has
    restarted. Asks the server if `ask`; other sessions live as long as their JVM.
    """
    if not is_connected(session) or not (ask or session.is_stopped):
        return False
    try:
        session.conf.get("spark.sql.session.timeZone")
    except Exception as error:  # noqa: BLE001 - only one kind of answer means that
        if "INVALID_HANDLE" not in str(error) and not session.is_stopped:
            return False  # whoever needs it is told why it does not answer
        with contextlib.suppress(Exception):
            session.stop()
        return True
    return bool(session.is_stopped)


def is_connected(session: SparkSession) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect")


def is_own(session: SparkSession) -> bool:
    """Whether a session was started here; an application's has its own settings."""
    return any(session is one for one in _own)


def sees_this_disk(session: SparkSession) -> bool:
    """Whether the tasks of a session read and write files of this machine: only where they run in its own JVM.

    Also not of an application's session on a cluster, even if all its machines mount one disk: we cannot know it, and
    a file that a task has written elsewhere would be missed by nobody.
    """
    return not is_connected(session) and _is_local(str(session.conf.get("spark.master")))


def check_settings(session: SparkSession) -> None:
    """`Permanent` for a setting of the session under which rows would be changed by the commit.

    Everything else that matters is said with each read and write, so that the session's own settings do not count.
    """
    for key, (bad, why, good) in _UNUSABLE.items():
        value = session.conf.get(key)  # one of Spark's own: it has a default
        if value is not None and value.upper() == bad:
            raise InvalidSetting(
                f"The Spark session has {key} = {value}: {why}.",
                hint=f"Nothing was committed. Set it to {good} for this session, or let the store start its own.",
            )


def _launch(settings: Mapping[str, str], log: Path | None) -> None:
    """Start the JVM with what it needs to start. PySpark would put every setting on its command line, passwords and
    keys among them, and that is for every user of the machine to see; the others follow over its own connection.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    if SparkContext._gateway is not None:  # noqa: SLF001 - a session was stopped; its JVM is still there
        return
    output = SparkLog(log)
    try:
        gateway = launch_gateway(conf, {"stdout": output.input, "stderr": output.input})
    except PySparkRuntimeError as error:
        output.handed_over()
        where = "run it with -v" if log is None else f"read {log}"
        raise EnvironmentProblem(
            f"Spark's JVM did not start: {output.last_words()}.",
            hint=f"For its full output, {where}. [spark] in floodmark.toml configures how it is started.",
        ) from error
    except BaseException:
        output.handed_over()
        raise
    output.handed_over()
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001 - the one way to start it with fewer settings


def _is_local(master: str) -> bool:
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _may_be_seen(key: str) -> bool:
    return key in _SETTINGS or (key.startswith(_AT_START) and _SECRET.search(key) is None)


def end_session(session: SparkSession) -> None:
    """Stop a session and wait until its JVM has ended, which otherwise happens some time after this process has."""
    from pyspark import SparkContext

    session.stop()
    gateway = SparkContext._gateway  # noqa: SLF001 - there is no public name
    process = getattr(gateway, "proc", None)
    if gateway is not None and process is not None:
        gateway.shutdown()
        process.stdin.close()
        process.wait()


def session_lost() -> bool:
    """Whether the JVM that this process started has ended under it. PySpark does not come back from that.

    Starts nothing, and does not see a session that runs elsewhere.
    """
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - there is no public name
    return process is not None and process.poll() is not None
