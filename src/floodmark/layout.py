"""How the tables of a dataset are laid out. Pure.

A layout belongs to a generation of a dataset's table: it is chosen when the table is created, and another one needs a
rebuild. Whatever it is, rows are found by their sequence number; the layout decides what that costs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from floodmark.errors import InvalidSetting

BUCKET_WIDTH_MIN = 1 << 10
BUCKET_WIDTH_MAX = 1 << 30
FORMAT_VERSIONS = (2, 3)


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of one generation's table."""

    bucket_width: int = 1 << 20
    """How many sequence numbers share a partition of the table. Compaction never mixes two."""
    format_version: int = 2
    """Iceberg's."""
    warehouse: str | None = None
    """The URL under which the table's files are; None: beside the catalog."""
    sort: tuple[str, ...] = ()
    """Columns by which the rows of a file are ordered, before their number."""

    def __post_init__(self) -> None:
        if not BUCKET_WIDTH_MIN <= self.bucket_width <= BUCKET_WIDTH_MAX:
            raise InvalidSetting(
                f"A bucket width of {self.bucket_width} cannot be used.",
                hint=f"Use a number from {BUCKET_WIDTH_MIN} to {BUCKET_WIDTH_MAX}.",
            )
        if self.format_version not in FORMAT_VERSIONS:
            raise InvalidSetting(
                f"A format version of {self.format_version} cannot be used.", hint="Use version 2 or 3."
            )

    def changed(
        self,
        *,
        bucket_width: int | None = None,
        format_version: int | None = None,
        warehouse: str | None = None,
        sort: tuple[str, ...] | None = None,
    ) -> Layout:
        """The layout with what is given; the rest stays."""
        return Layout(
            self.bucket_width if bucket_width is None else bucket_width,
            self.format_version if format_version is None else format_version,
            self.warehouse if warehouse is None else warehouse,
            self.sort if sort is None else sort,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Layout:
        content = json.loads(text)
        return cls(**{**content, "sort": tuple(content.get("sort", ()))})
