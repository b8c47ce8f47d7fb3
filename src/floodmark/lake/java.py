"""Java: found, and of a version that Spark runs on, or a sentence that says what to install."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from floodmark.errors import EnvironmentProblem

JAVA_MIN = 17
JAVA_MAX = 22
"""In Java 23 a method fails that Spark calls for every file (`Subject.getSubject`); from 24 on it is removed."""
_INSTALL = "Install Java 17 or 21 (Debian: `apt-get install openjdk-17-jre-headless`; macOS: `brew install openjdk@17`)"
_PLACES = ("/usr/lib/jvm/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home", "/opt/homebrew/opt/openjdk@*")


def check_java() -> int:
    """The major version of the Java that Spark will use; `EnvironmentProblem` says what to install."""
    program = _java_program()
    major = _major(java_build(), r'version "')
    if major is None:
        raise EnvironmentProblem(f"{program} does not report its version.", hint=f"{_INSTALL}.")
    if not JAVA_MIN <= major <= JAVA_MAX:
        raise EnvironmentProblem(
            f"Spark does not run on Java {major} ({program}); it needs Java 17 or 21.",
            hint=_use_another(),
        )
    return major


def java_build() -> str:
    """Which Java it is, to the very build, in its own words."""
    return _build(_java_program())


@functools.cache
def _build(program: str) -> str:
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False, errors="replace")
    except OSError as error:
        raise EnvironmentProblem(f"Java at {program} does not start: {error}.", hint=f"{_INSTALL}.") from error
    return done.stderr + done.stdout


def _major(text: str, before: str) -> int | None:
    """17 of `17.0.15` and of `17-ea`, 8 of `1.8.0_392`."""
    found = re.search(rf"{before}(\d+)(?:\.(\d+))?", text)
    if found is None:
        return None
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def _use_another() -> str:
    """Name a Java that is installed and fits, or say what to install."""
    for pattern in _PLACES:
        for home in sorted(Path("/").glob(pattern[1:])):
            try:
                major = _major((home / "release").read_text(errors="replace"), 'JAVA_VERSION="')
            except OSError:
                continue
            if major is not None and JAVA_MIN <= major <= JAVA_MAX and (home / "bin" / "java").is_file():
                return f"Java {major} is installed: set JAVA_HOME={home}."
    return f"{_INSTALL} and point JAVA_HOME to it."


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
