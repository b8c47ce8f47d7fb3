"""The units and the container file call commands and options that exist, with the versions of this release."""

from __future__ import annotations

import configparser
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from floodmark import config
from floodmark.cli.group import app

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "examples" / "service"
UNITS = sorted(PLACE.glob("*.service"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def check_command(words: list[str]) -> None:
    """Parse it as the program would; nothing runs."""
    command: click.Command = app
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words
        command, words = found, words[1:]
    command.make_context(command.name, list(words), resilient_parsing=False)


def unit(path: Path) -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(path)
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_has_its_sections_and_runs_commands_that_exist(path: Path) -> None:
    assert len(UNITS) == 2
    found = unit(path)
    assert {"Unit", "Service", "Install"} <= set(found.sections())
    service = found["Service"]
    for key in ("ExecStartPre", "ExecStart"):
        program, *words = shlex.split(service[key])
        assert Path(program).name == "floodmark"
        check_command(words)
    assert service["User"] != "root"
    assert service["Restart"] == "on-failure"
    assert found["Install"]["WantedBy"] == "multi-user.target"


def test_a_stop_is_given_more_time_than_the_work_in_progress_gets() -> None:
    seconds = int(unit(PLACE / "floodmark@.service")["Service"]["TimeoutStopSec"])
    assert seconds > config.RunSettings().stop_seconds_max


def instructions() -> list[tuple[str, str]]:
    """The container file's instructions, with continued lines joined."""
    text = re.sub(r"\\\n", " ", (PLACE / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_container_file_has_only_instructions_that_there_are_and_begins_with_an_image() -> None:
    known = {"FROM", "RUN", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    found = instructions()
    assert found[0][0] == "FROM"
    assert {word for word, _ in found} <= known
    assert [word for word, _ in found].index("USER") < [word for word, _ in found].index("ENTRYPOINT")
    assert dict(found)["USER"].split(":")[0] not in {"root", "0"}


def test_the_container_runs_this_release_and_commands_that_exist() -> None:
    found = instructions()
    wheel = f"floodmark-{VERSION}-py3-none-any.whl"
    assert all(wheel in rest for word, rest in found if word == "COPY")
    words = re.findall(r'"([^"]*)"', dict(found)["CMD"])
    check_command(words)
    for _, rest in found:
        for text in re.findall(r"(?:^|&& )floodmark ([^&]+)", rest):
            check_command(shlex.split(text))
    assert "/healthz" in dict(found)["HEALTHCHECK"]
    store = next(rest.partition("=")[2] for word, rest in found if word == "ENV" and rest.startswith("FLOODMARK_STORE"))
    assert f'"{store}"' in dict(found)["VOLUME"]


def test_no_file_names_a_registry() -> None:
    for path in PLACE.iterdir():
        assert not re.search(r"docker\.io|quay\.io|ghcr\.io|pypi\.org|index-url", path.read_text())
