"""Errors of other libraries, told in one line."""

from __future__ import annotations

import pytest

from floodmark.errors import FloodmarkError, reason_of

JAVA = """An error occurred while calling o288.overwrite.
: org.apache.spark.SparkException: Writing job failed.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.writingJobFailedError(QueryExecutionErrors.scala:1)
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\tat x.y.Z(Z.java:1)
Caused by: java.io.IOException: No space left on device
\t... 49 more
"""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError(JAVA), "java.io.IOException: No space left on device"),
        (
            RuntimeError("An error occurred while calling o1.sql.\n: java.lang.Error: no.\n\tat a.b"),
            "java.lang.Error: no",
        ),
        (RuntimeError("[TABLE_NOT_FOUND] The table is not there.\nmore"), "[TABLE_NOT_FOUND] The table is not there"),
        (RuntimeError(), "RuntimeError"),
        (RuntimeError("x" * 1000), "x" * 300),
    ],
)
def test_the_innermost_cause_is_told_in_one_line(error: Exception, told: str) -> None:
    assert reason_of(error) == told


def test_a_message_is_one_line_that_no_terminal_obeys_whatever_is_put_into_it() -> None:
    error = FloodmarkError("a\nb \x1b[2J \ud800 é", hint="x" * 100_000)
    assert error.message == "a b \\x1b[2J \\ud800 é"
    assert len(error.hint or "") == 2000
    assert "\n" not in str(error)
