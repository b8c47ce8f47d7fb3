"""ARCHITECTURE.md shows the tree as it is: every room, in the order that `.importlinter` enforces."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "floodmark"
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
OUTSIDE_OF_THE_LAYERS = {"eventlog"}
"""The event log has a contract of its own."""


def rooms_of_the_page() -> list[str]:
    """The rooms, as the table lists them: from the top down."""
    table = PAGE.partition("## Rooms")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name.removesuffix("/").removesuffix(".py") for row in rows for name in re.findall(r"`([\w./]+)`", row)]


def layers() -> list[set[str]]:
    """The layers of `.importlinter`, from the top down, as rooms."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    lines = parser["importlinter:contract:layers"]["layers"].strip().splitlines()
    return [{item.strip().split(".")[1] for item in line.split("|")} for line in lines]


def test_every_room_of_the_tree_is_on_the_page_and_no_other() -> None:
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(rooms_of_the_page()) == sorted(there - {"__init__"})


def test_the_page_has_the_rooms_in_the_order_that_the_layers_enforce() -> None:
    first: dict[str, int] = {}
    for depth, rooms in enumerate(layers()):
        for room in rooms:
            first.setdefault(room, depth)
    named = [room for room in rooms_of_the_page() if room not in OUTSIDE_OF_THE_LAYERS]
    assert set(named) == set(first), "a room without a layer, or a layer without a room"
    depths = [first[room] for room in named]
    assert depths == sorted(depths), list(zip(named, depths, strict=True))


def test_every_file_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`", PAGE)
    missing = [name for name in named if not any((base / name).exists() for base in (SOURCE, ROOT))]
    assert missing == []
