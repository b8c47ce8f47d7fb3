"""What `make bench` measured last, part by part: the figures that the page of performance and the README show."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Record:
    """One run of one part."""

    part: str
    date: str
    commit: str
    scale: float
    """Of the usual row counts."""
    cores: int
    memory_gib: int
    """0 if it was not written down, as is an empty version."""
    python: str
    quiet: bool
    """Whether the machine had nothing else to do."""
    figures: dict[str, Any]
    note: str = ""
    """Where the figures come from, if not from a run that kept them here."""


def new_record(part: str, figures: dict[str, Any], *, scale: float, quiet: bool) -> Record:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Record(
        part=part,
        date=datetime.now(UTC).date().isoformat(),
        commit=commit.strip(),
        scale=scale,
        cores=os.cpu_count() or 1,
        memory_gib=round(memory / (1 << 30)),
        python=platform.python_version(),
        quiet=quiet,
        figures=figures,
    )


def keep(record: Record, directory: Path = HERE) -> Path:
    file = directory / f"{record.part}.json"
    file.write_text(json.dumps(asdict(record), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return file


def records() -> dict[str, Record]:
    """By part."""
    found = [Record(**json.loads(file.read_text(encoding="utf-8"))) for file in sorted(HERE.glob("*.json"))]
    return {record.part: record for record in found}
