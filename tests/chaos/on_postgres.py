"""Run a module of the product with its store's records in PostgreSQL: `python on_postgres.py MODULE ARGUMENTS…`.

`FLOODMARK_TEST_CONTROL` is `path=url`: the store there has its control database at that address.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import floodmark.store
from floodmark.control.database import sqlite_url

VARIABLE = "FLOODMARK_TEST_CONTROL"


def redirect() -> None:
    root, _, url = os.environ[VARIABLE].partition("=")

    def address(file: Path) -> str:
        return url if file.parent == Path(root) else sqlite_url(file)

    floodmark.store.sqlite_url = address


if __name__ == "__main__":
    redirect()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
