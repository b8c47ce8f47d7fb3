#!/usr/bin/env python
"""The size and the shape of the source, in one table: `python scripts/house.py [--json]`."""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Protocol

import grimp

from floodmark.lake.table import Lake
from floodmark.store import Store, init
from floodmark.testing import MemoryLake

ROOT = Path(__file__).parents[1]
SOURCE = sorted((ROOT / "src" / "floodmark").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PUBLIC = {"_replace", "_asdict", "_fields", "_make", "_exit"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    asked = parser.parse_args()
    found = figures()
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    width = max(map(len, found))
    for name, number in found.items():
        print(f"{name:{width}}  {number:>7,}")


def figures() -> dict[str, int]:
    graph = grimp.build_graph("floodmark", cache_dir=None)
    importers = {module: graph.find_modules_that_directly_import(module) for module in graph.modules}
    return {
        "source lines": sum(path.read_text().count("\n") for path in SOURCE),
        "source files": len(SOURCE),
        "modules with exactly one importer": sum(len(found) == 1 for found in importers.values()),
        "public methods of the lake contract": len(contract(Lake)),
        "modules that one row meets, capture to object": len(modules_met()),
        "uses of Any": uses(r"^(?!\s*(?:from|import)\b).*?\bAny\b", SOURCE),
        "type: ignore": uses(r"#\s*type:\s*ignore", SOURCE),
        "noqa": uses(r"#\s*noqa", SOURCE),
        "private attributes in tests": sum(map(private_attributes, TESTS)),
    }


def contract(protocol: type) -> set[str]:
    """What an implementation has to have: its own public names and those of the protocols it is composed of."""
    parts = [kind for kind in protocol.__mro__ if Protocol in kind.__bases__]
    return {name for kind in parts for name, value in vars(kind).items() if name[0] != "_" and callable(value)}


def modules_met() -> set[str]:
    """The modules with a function that was called while one row went from capture through flush to an object."""
    met: set[str] = set()

    def called(frame: FrameType, event: str, _argument: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("floodmark."):
            met.add(module)

    with tempfile.TemporaryDirectory() as scratch, init(Path(scratch) / "store", lake=MemoryLake()) as store:
        store.add_dataset("rows", schema={"id": "long"})
        store.add_sink("files", "blob", url=(Path(scratch) / "out").as_uri())
        deliver(store, 1)  # imports run code of their own, and what is imported late must not count as met
        threading.setprofile(called)
        sys.setprofile(called)
        try:
            deliver(store, 2)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return met


def deliver(store: Store, id: int) -> None:
    store.capture("rows", [{"id": id}])
    store.flush("rows")
    if store.export("files").rows != 1:
        raise RuntimeError("The row was not delivered.")


def uses(pattern: str, paths: Iterable[Path]) -> int:
    """How many times it occurs; for a pattern that begins at a line's start, in how many lines."""
    compiled = re.compile(pattern, re.MULTILINE)
    return sum(len(compiled.findall(path.read_text())) for path in paths)


def private_attributes(path: Path) -> int:
    """How many times a file reaches into something else's private half: not its own (`self._x`, `super()._x`), nor a
    NamedTuple's methods and `os._exit`, which only look private.
    """
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
    others = [node for node in found if ast.unparse(node.value) not in {"self", "cls", "super()"}]
    return sum(node.attr[0] == "_" and node.attr[:2] != "__" and node.attr not in PUBLIC for node in others)


if __name__ == "__main__":
    main()
