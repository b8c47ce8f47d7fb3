"""Lines of the landing log that this process wrote, with their rows as they were fitted. Pure.

Sealing is the only parser. What it would make of a line is known in advance where capture has fitted the very values
that the line's JSON reads back as: the same function, of the same arguments. Such a line's rows are kept in memory, up
to a bound. The line itself is read again when it is sealed; if it is not the one that was written, it is parsed.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from floodmark.rows.plain import Demands
from floodmark.schema import Schema
from floodmark.schema.types import BOOLEAN, DATE, DOUBLE, INT, LONG, STRING, TIMESTAMP, ColumnType

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.rows.fit import FittedRows

BYTES_MAX = 64 << 20

_UNCHANGED: dict[ColumnType, type] = {
    STRING: str,
    INT: int,
    LONG: int,
    DOUBLE: float,
    BOOLEAN: bool,
    TIMESTAMP: str,
    DATE: str,
}
"""By column type: the one Python type of values that JSON gives back as they were. A whole number in a column of
doubles may have more digits than are written."""


@dataclass(frozen=True, slots=True)
class CachedLine:
    """A line's rows, and what they were fitted to."""

    table: pa.Table
    schema: Schema
    demands: Demands
    digest: bytes


@dataclass(slots=True)
class LineCache:
    """The lines of one process that are not sealed, those that were written last. May be used by many threads."""

    bytes_max: int = BYTES_MAX
    size: int = 0
    """How many bytes their rows have now."""
    _datasets: set[str] = field(default_factory=set)
    _held: OrderedDict[tuple[str, int], CachedLine] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _process: int = field(default_factory=os.getpid)

    def expect(self, dataset: str) -> None:
        """Keep the lines of a dataset from now on: this process seals it."""
        self._datasets.add(dataset)

    def caches(self, dataset: str) -> bool:
        return dataset in self._datasets

    def keep(self, file: str, offset: int, line: bytes, found: FittedRows, schema: Schema, demands: Demands) -> None:
        """Keep the rows of a line, if sealing could make nothing else of it."""
        table = found.fit.table
        if not is_certain(found, schema) or table.nbytes > self.bytes_max:
            return
        self._forget_after_fork()
        with self._lock:
            self._held[(file, offset)] = CachedLine(table, schema, demands, _digest(line))
            self.size += table.nbytes
            while self.size > self.bytes_max:
                self.size -= self._held.popitem(last=False)[1].table.nbytes

    def take(self, file: str, offset: int, line: bytes) -> CachedLine | None:
        """The rows of a line, if it is the one that was written; they are not kept any longer."""
        self._forget_after_fork()
        with self._lock:
            found = self._held.pop((file, offset), None)
            if found is not None:
                self.size -= found.table.nbytes
        return found if found is not None and found.digest == _digest(line) else None

    def _forget_after_fork(self) -> None:
        if self._process != os.getpid():  # the lock may have been held, and the files are the parent's
            self._lock, self._process = threading.Lock(), os.getpid()
            self._held, self.size = OrderedDict(), 0


def is_certain(found: FittedRows, schema: Schema) -> bool:
    """Whether every row fitted the schema as it was, and all values come back from JSON unchanged."""
    fitted = found.fit
    if fitted.misfits or fitted.evolves or fitted.schema != schema or not fitted.table.num_rows:
        return False
    return all(
        _comes_back(schema, name, values) for name, values in zip(found.columns, found.values, strict=True)
    ) and _is_finite(fitted.table)


def _comes_back(schema: Schema, name: str, values: Sequence[Any]) -> bool:
    column = schema.get(name)
    wanted = None if column is None else _UNCHANGED.get(column.type)
    return wanted is not None and set(map(type, values)) <= {wanted, type(None)}


def _is_finite(table: pa.Table) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    doubles = [column for column in table.columns if pa.types.is_floating(column.type)]
    return all(pc.all(pc.is_finite(column)).as_py() is not False for column in doubles)


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=16).digest()
