"""Java: found and new enough, or a sentence that says what to install."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from floodmark.errors import EnvironmentProblem

JAVA_MIN = 17
_INSTALL = (
    "Install a JDK 17 or newer (Debian: `apt-get install openjdk-17-jre-headless`; macOS: `brew install openjdk@17`)"
)


def check_java() -> int:
    """The major version of the Java that Spark will use; `EnvironmentProblem` says what to install."""
    program = _java_program()
    found = re.search(r'version "(\d+)(?:\.(\d+))?', java_build())
    if found is None:
        raise EnvironmentProblem(f"{program} does not say which Java it is.", hint=f"{_INSTALL}.")
    major = int(found[2] or 0) if found[1] == "1" else int(found[1])
    if major < JAVA_MIN:
        raise EnvironmentProblem(
            f"Spark needs Java {JAVA_MIN} or newer; {program} is Java {major}.",
            hint=f"{_INSTALL} and point JAVA_HOME to it.",
        )
    return major


@functools.cache
def java_build() -> str:
    """Which Java it is, to the very build, in its own words."""
    program = _java_program()
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise EnvironmentProblem(f"Java at {program} does not start: {error}.", hint=f"{_INSTALL}.") from error
    return done.stderr + done.stdout


def _java_program() -> str:
    """Spark's own rule: JAVA_HOME if it is set, else what PATH has."""
    home = os.environ.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        if not program.is_file():
            raise EnvironmentProblem(
                f"JAVA_HOME is {home}, and there is no bin/java in it.", hint="Correct or unset JAVA_HOME."
            )
        return str(program)
    found = shutil.which("java")
    if found is None:
        raise EnvironmentProblem("Java is not installed, and Spark runs on it.", hint=f"{_INSTALL}.")
    return found
