"""What is released: two builds are the same bytes, the wheel has what it needs and nothing else, and it works without
the checkout, from its installation to a first export.
"""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import orjson
import pytest

from floodmark.lake.jars import JARS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
EPOCH = "1767225600"


def build(to: Path) -> tuple[Path, Path]:
    """The wheel, made of the sdist, and the sdist; without network."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(to), str(ROOT)],
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        check=True,
        capture_output=True,
    )
    return to / f"floodmark-{VERSION}-py3-none-any.whl", to / f"floodmark-{VERSION}.tar.gz"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def names(built: tuple[Path, Path]) -> list[str]:
    with zipfile.ZipFile(built[0]) as wheel:
        return wheel.namelist()


def test_two_builds_are_the_same_bytes(built: tuple[Path, Path], tmp_path: Path) -> None:
    again = build(tmp_path)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in built]


def test_the_wheel_has_every_file_of_the_package_and_no_other(names: list[str]) -> None:
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "src/floodmark"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    tracked = {name.removeprefix("src/") for name in done.stdout.split("\0") if name and (ROOT / name).is_file()}
    packed = {name for name in names if not name.startswith(f"floodmark-{VERSION}.dist-info/")}
    assert packed == tracked
    assert {"floodmark/py.typed", "floodmark/lake/log4j2.properties"} <= packed


def test_no_test_code_is_in_the_wheel(built: tuple[Path, Path], names: list[str]) -> None:
    assert not [
        name for name in names if "/tests/" in name or name.rpartition("/")[2].startswith(("test_", "conftest"))
    ]
    with zipfile.ZipFile(built[0]) as wheel:
        code = {name: wheel.read(name).decode() for name in names if name.endswith(".py")}
    needs = ("import pytest", "import hypothesis", "from hypothesis", "from tests")
    assert [name for name, text in code.items() if any(need in text for need in needs)] == []


def test_the_metadata_says_what_it_is_and_carries_every_licence(built: tuple[Path, Path], names: list[str]) -> None:
    about = f"floodmark-{VERSION}.dist-info"
    with zipfile.ZipFile(built[0]) as wheel:
        metadata = email.message_from_bytes(wheel.read(f"{about}/METADATA"))
        entry_points = wheel.read(f"{about}/entry_points.txt").decode()
    assert (metadata["Name"], metadata["Version"]) == ("floodmark", "0.1.0")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"postgres", "s3", "otel", "connect", "all"} <= set(metadata.get_all("Provides-Extra") or ())
    assert "Typing :: Typed" in (metadata.get_all("Classifier") or ())
    assert str(metadata.get_payload()).startswith("# Floodmark")
    assert "floodmark = floodmark.cli:main" in entry_points
    licences = {name.removeprefix(f"{about}/licenses/") for name in names if name.startswith(f"{about}/licenses/")}
    foreign = {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.LICENSE")}
    assert licences == {"LICENSE", *foreign}


def test_every_script_of_others_has_its_licence_beside_it() -> None:
    foreign = [path for path in (ROOT / "src").rglob("*.min.*") if path.suffix in {".js", ".css"}]
    assert foreign
    assert [path.name for path in foreign if not path.with_name(f"{path.name.split('.')[0]}.LICENSE").exists()] == []


def test_the_sdist_has_what_a_build_needs_and_the_documents(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as sdist:
        found = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "docs/tutorial.md"} <= found
    assert not [name for name in found if name.startswith(("tests/", "bench/", "scripts/"))]


def test_the_release_has_notes_under_its_version() -> None:
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text()


# ── without the checkout ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the wheel in it. What the wheel depends on is lent by this one: no network."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place / "venv", symlinks=True)
    python = place / "venv" / "bin" / "python"
    home = Path(
        subprocess.check_output([python, "-c", "import site; print(site.getsitepackages()[0])"], text=True).strip()
    )
    # A wheel is an archive of what is to be there; entry points become scripts.
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(home)
    (home / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    script = place / "venv" / "bin" / "floodmark"
    script.write_text(f"#!{python}\nfrom floodmark.cli import main\nmain()\n")
    script.chmod(0o755)
    return place


class Machine:
    """A machine with nothing but the installed package: no variables of ours, another home, no checkout."""

    def __init__(self, place: Path, home: Path) -> None:
        self.place, self.home = place, home
        java = shutil.which("java") or f"{os.environ.get('JAVA_HOME', '')}/bin/java"
        self.environment = {
            "HOME": str(home),
            "PATH": f"{place}/venv/bin:{Path(java).parent}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
        }
        # How its JVM is run is the machine's affair: here it lives for seconds.
        lent = ("JAVA_HOME", "SPARK_SUBMIT_OPTS")
        self.environment |= {name: os.environ[name] for name in lent if os.environ.get(name)}

    def run(self, *words: str, stdin: bytes = b"", code: int = 0) -> str:
        done = subprocess.run(
            ["floodmark", *words], cwd=self.home, env=self.environment, input=stdin, capture_output=True, check=False
        )
        assert done.returncode == code, f"{words}: {done.stdout.decode()}{done.stderr.decode()}"
        return done.stdout.decode()


def lend_jars(place: Path) -> None:
    """The jars that every store needs, without copying them."""
    place.mkdir(parents=True)
    for jar in JARS:
        (place / jar.file_name).symlink_to(Path(os.environ["FLOODMARK_JARS"]).absolute() / jar.file_name)


@pytest.fixture
def machine(installed: Path, tmp_path: Path) -> Machine:
    return Machine(installed, tmp_path)


def test_it_is_the_installed_package_that_runs(machine: Machine) -> None:
    assert machine.run("--version") == f"floodmark {VERSION}\n"
    where = subprocess.check_output(
        [machine.place / "venv/bin/python", "-c", "import floodmark; print(floodmark.__file__)"],
        cwd=machine.home,
        env=machine.environment,
        text=True,
    )
    assert str(machine.place) in where
    assert "doctor" in machine.run("--help")


def test_from_the_installation_to_the_first_export(machine: Machine) -> None:
    """One JVM: `run --once` commits and delivers."""
    lend_jars(machine.home / ".cache" / "floodmark" / "jars")
    machine.run("init", "river")
    machine.run("-s", "river", "dataset", "add", "readings", "--identity", "gauge,at", "--event-time", "at")
    machine.run("-s", "river", "sink", "add", "archive", "blob", "--url", (machine.home / "out").as_uri())
    row = b'{"gauge": "weir", "at": "2026-03-02T08:00:00Z", "level": 1.42}\n'
    machine.run("-s", "river", "capture", "readings", "-", stdin=row + row)
    machine.run("-s", "river", "run", "--once")
    status = orjson.loads(machine.run("-s", "river", "status", "--json"))
    assert status["datasets"][0]["rows"] == 1
    assert status["sinks"][0]["lag"] == 0
    assert len(list((machine.home / "out").rglob("*.parquet"))) == 1
    machine.run("-s", "river", "audit", "archive")
    machine.run("-s", "river", "config", "check")
    machine.run("-s", "river", "doctor", "--no-spark")


def test_a_machine_without_network_takes_jars_from_a_directory(machine: Machine, tmp_path: Path) -> None:
    """`jars --to` into a directory that has them downloads nothing; FLOODMARK_JARS names it."""
    there = tmp_path / "usb"
    lend_jars(there)
    machine.environment |= {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    assert str(there) in machine.run("jars", "--to", str(there))
    machine.environment["FLOODMARK_JARS"] = str(there)
    checks = orjson.loads(machine.run("doctor", "--no-spark", "--json"))["checks"]
    assert next(one for one in checks if one["name"] == "jars")["state"] == "ok"
