"""Spark's classes, loaded and checked once, in a file that every JVM maps into its memory.

About half of what a session's start costs is the JVM reading some fifteen thousand classes. The archive spares it
that. It fits one build of Java and one set of jars; the JVM checks both, and ignores it where they differ.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from floodmark.lake.jars import jar_directory
from floodmark.lake.java import java_build


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
