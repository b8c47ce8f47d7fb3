"""Every command and every Python block of README, tutorial and how-to pages does what its page says.

`DOCS_WALK=directory` writes what every page printed there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from walk import ROOT, Block, Command, Shell, blocks, commands, matches, normalised, without_progress
from walked_pages import PAGES, Page

from postgres import postgres_server  # noqa: F401 - a fixture
from s3 import free_port

FOLDERS = ("docs/coming-from", "docs/how-to")
NAMES = [
    "README.md",
    "docs/index.md",
    "docs/tutorial.md",
    *sorted(f"{folder}/{path.name}" for folder in FOLDERS for path in (ROOT / folder).glob("*.md")),
]
RUN = ("console", "python", "toml")


def test_every_page_says_what_it_takes_for_granted():
    assert sorted(PAGES) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_block_of_a_page_is_run_or_listed_with_the_reason(name: str):
    """A new block has a fence that the walk runs, or stands in `walked_pages.py` with the reason why it is not run."""
    page = PAGES[name]
    found = blocks(name)
    listed = {block.title for block in found if block.kind not in RUN or block.title in page.not_run}
    listed |= {item.text for block in found if block.kind == "console" for item in commands(block)} & set(page.not_run)
    assert listed == set(page.not_run), "neither run nor listed, or listed and no longer on the page"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.spark] if PAGES.get(name, Page()).spark else []) for name in NAMES],
)
def test_a_new_user_who_follows_the_page_sees_what_it_shows(name: str, tmp_path: Path, request):
    page = PAGES[name]
    if page.spark:
        request.getfixturevalue("spark")
    services = {need: request.getfixturevalue(need) for need in page.needs}
    directory = tmp_path / "here"
    words = {"directory": str(directory), "port": str(free_port()), **page.words(services)}
    with Shell(directory, {k: v.format(**words) for k, v in page.environment.items()}) as shell:
        walk = Walk(name, page, shell, words)
        try:
            walk.take_for_granted()
            for block in blocks(name):
                walk.follow(block)
            codes = shell.stop_everything()
            assert set(codes) <= {0}, "what ran in the background did not end well"
        finally:
            walk.write_down()


class Walk:
    def __init__(self, name: str, page: Page, shell: Shell, words: Mapping[str, str]) -> None:
        self.name, self.page, self.shell, self.words = name, page, shell, words
        self.namespace: dict[str, Any] = {"__name__": "page"}
        self.story: list[str] = []

    def take_for_granted(self) -> None:
        for text in self.page.given.split("---\n"):
            self.prepare(text)

    def follow(self, block: Block) -> None:
        if block.kind not in RUN or block.title in self.page.not_run:
            return
        if block.kind == "console":
            for command in commands(block):
                if command.text not in self.page.not_run:
                    self.type(command)
        elif named := re.match(r"# ([\w./-]+\.py)\n", block.text):
            file = self.shell.directory / named[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.kind == "toml":
            self.set(self.shell.directory / self.page.store / "floodmark.toml", self.real(block.text))
        else:
            self.run_python(block)

    def set(self, file: Path, settings: str) -> None:
        """Edit floodmark.toml as a reader would: a section that is there gets the keys, and a new one is added."""
        head, _, keys = settings.partition("\n")
        text = file.read_text()
        file.write_text(text.replace(f"{head}\n", settings) if f"{head}\n" in text else f"{text}\n{settings}")
        assert keys in file.read_text()

    def type(self, command: Command) -> None:
        text = self.real(command.text)
        shown = self.shown(command)
        if before := self.page.before.get(command.text):
            self.prepare(before)
        if command.stays:
            self.shell.start(text, self.page.ready[command.text])
            printed = self.shell.said()
        else:
            done = self.shell.do(text)
            printed = done.output
            expected = self.page.fails.get(command.text, 0)
            self.story.append(f"$ {command.text}\n{printed}[{done.code}]\n")
            assert done.code == expected, f"$ {text}\n{printed}\n[exit code {done.code}]"
        if command.stays:
            self.story.append(f"$ {command.text}\n{printed}")
        assert not re.search(r"Traceback|\bWARN\b|Unexpected failure", printed), printed
        if shown:
            real = without_progress(normalised(printed, {str(self.shell.directory): "/tmp"}))
            assert matches(shown, real), "\n".join([f"$ {text}", *real, "[the page shows]", *shown])

    def prepare(self, text: str) -> None:
        for part in text.format(**self.words).split("---\n"):
            if part.strip() == "stop":
                assert set(self.shell.stop_everything()) <= {0}
            elif part.startswith("start "):
                self.shell.start(part.removeprefix("start ").strip(), "Hub on")
            else:
                done = self.shell.do(f"set -e\n{part}\nset +e" if part else "true")
                assert done.code == 0, f"{part}\n{done.output}"

    def shown(self, command: Command) -> list[str]:
        return normalised(self.real("\n".join(command.shown), printed=True), {str(self.shell.directory): "/tmp"})

    def run_python(self, block: Block) -> None:
        printed = self.shell.python(self.real(block.text), block, self.namespace)
        self.story.append(f"{block.text}{printed}")
        promised = re.findall(r"# → (.*)", block.text)
        if promised:
            real, shown = (
                normalised(text, {str(self.shell.directory): "/tmp"}) for text in (printed, "\n".join(promised))
            )
            assert matches(shown, real), printed

    def real(self, text: str, *, printed: bool = False) -> str:
        """The text with what the test has in place of what the page names; what bash replaces is not printed."""
        for shown, here in self.page.instead.items():
            if printed and "$(" in here:
                continue
            text = text.replace(shown, here.format(**self.words, process=self.shell.last_process))
        return text

    def write_down(self) -> None:
        if place := os.environ.get("DOCS_WALK"):
            Path(place).mkdir(parents=True, exist_ok=True)
            (Path(place) / f"{Path(self.name).stem}.txt").write_text("\n".join(self.story))
