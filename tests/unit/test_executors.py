"""What Spark and its executors lack is said in one sentence, whatever language the error comes from."""

from __future__ import annotations

import pytest

from floodmark.errors import EnvironmentProblem
from floodmark.lake import executors

PYTHON = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
TEXTS = {
    f"{PYTHON}ModuleNotFoundError: No module named 'floodmark'": "does not have the module 'floodmark'",
    f"{PYTHON}RuntimeError: floodmark 0.0.9 on the executor, 0.1.0 here": "Floodmark: floodmark 0.0.9 on the executor",
    f"{PYTHON}AttributeError: Can't get attribute 'begin_task' on <module 'floodmark.lake.executors' from 'x'>": (
        "another version of floodmark.lake.executors"
    ),
    "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
    "version: 3.9 than that in driver: 3.11": "run Python 3.9",
    'java.io.IOException: Cannot run program "/opt/env/bin/python": error=2, No such file': (
        "do not have the program '/opt/env/bin/python'"
    ),
    ": org.apache.spark.SparkException: Cannot find catalog plugin class for catalog 'lake': "
    "org.apache.iceberg.spark.SparkCatalog.\n\tat org.apache.spark.sql.errors": (
        "the Iceberg runtime (org.apache.iceberg.spark.SparkCatalog is missing)"
    ),
    "Cannot initialize FileIO implementation org.apache.iceberg.aws.s3.S3FileIO: Cannot find constructor for interface "
    "org.apache.iceberg.io.FileIO\n\tMissing org.apache.iceberg.aws.s3.S3FileIO [java.lang.NoClassDefFoundError: "
    "software/amazon/awssdk/core/exception/SdkException]": "Iceberg's S3 client",
    "Failed to connect: jdbc:postgresql://h/x\nCaused by: java.sql.SQLException: No suitable driver found for "
    "jdbc:postgresql://h/x": "the catalog's database (jdbc:postgresql)",
    "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'WRITE'. SQLSTATE: 42601 (line 1, pos 18)": "Iceberg's extensions",
}


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_missing_is_said_with_the_way_out(text: str) -> None:
    with pytest.raises(EnvironmentProblem) as caught, executors.explained():
        raise ValueError(text)
    assert TEXTS[text] in caught.value.message
    assert "scale-out.md" in (caught.value.hint or "")


def test_every_other_error_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="Found conflicting files"), executors.explained():
        raise ValueError("ValidationException: Found conflicting files that can contain rows")


def test_a_task_of_another_version_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    own = executors.installed()
    assert own
    executors.begin_task(own)
    with pytest.raises(RuntimeError, match=f"floodmark {own} on the executor, 0.0.9 here"):
        executors.begin_task("0.0.9")
    monkeypatch.setattr(executors, "installed", lambda: "")  # sent along as an archive
    executors.begin_task("0.0.9")
