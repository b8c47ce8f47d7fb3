"""What a user names as a source, as units to read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from floodmark.backfill.files import FORMATS, file_source
from floodmark.backfill.fitting import kinds
from floodmark.backfill.given import given_source, provider_source
from floodmark.backfill.units import Source
from floodmark.config import SpoolSettings
from floodmark.control.datasets import Dataset
from floodmark.errors import InvalidSetting
from floodmark.providers import Provider

_TABLE_NAME = re.compile(r"[\w-]+(\.[\w-]+){2,}")


def is_table_name(source: Any) -> bool:
    """Whether it names an Iceberg table, `catalog.namespace.table`, and no file: also none that is missing."""
    if not isinstance(source, str) or _TABLE_NAME.fullmatch(source) is None:
        return False
    return Path(source).suffix.lower() not in {*FORMATS, ".gz"} and not Path(source).exists()


def open_source(
    source: Any,
    declared: Dataset,
    *,
    renamed: Mapping[str, str],
    format: str | None,
    source_id: str | None,
    provider: Provider | None,
    limits: SpoolSettings,
) -> Source:
    """The units of a path, of rows in memory, or of a provider."""
    if provider is not None:
        if source is not None and not isinstance(source, str | Path):
            raise InvalidSetting("A provider reads a location, not rows.", hint="Give a path or a URL, or nothing.")
        location = None if source is None else str(source)
        opened = provider_source(provider, location, has_identity=bool(declared.identity), name=source_id)
    elif source is None:
        raise InvalidSetting("There is nothing to load.", hint="Give a source, or name a provider.")
    elif isinstance(source, str | Path):
        opened = file_source(source, kinds(declared.schema, renamed), format=format, limits=limits)
    else:
        opened = given_source(source, name=source_id)
    return opened if source_id is None else replace(opened, name=source_id, anonymous=False)
