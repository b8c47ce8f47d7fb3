"""Rows as the bytes of one object, and whether the bytes of an object are those rows. Pure.

| format      | an object is                                                                          |
|-------------|---------------------------------------------------------------------------------------|
| `parquet`   | one Parquet file, zstd                                                                |
| `jsonl`     | one JSON object per row and line, in the forms that capture accepts                   |
| `jsonl.gz`  | the same, gzip                                                                        |
| `jsonl.zst` | the same, Zstandard                                                                   |

The same rows give the same bytes, whatever their layout in Arrow, so objects are compared by their bytes. Other bytes
may still be the same rows, written by another version of a library or before a column was widened: then both sides are
converted to one form and compared again.
"""

from __future__ import annotations

import base64
import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from floodmark.errors import InvalidSetting
from floodmark.schema import (
    BINARY,
    DOUBLE,
    FLOAT,
    JSON,
    TIMESTAMP,
    ColumnType,
    DecimalType,
    ListType,
    Schema,
    StructType,
)
from floodmark.schema.types import from_arrow, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("parquet", "jsonl", "jsonl.gz", "jsonl.zst")

ROW_GROUP_ROWS = 131_072
"""A whole object of the usual size is one row group: readers get long runs, and footers stay small."""
SAMPLE_ROWS = 2_000
_ZSTD_LEVEL = 1
_SLACK_BYTES = 1 << 20
_PIECE_BYTES = 4 << 20
UNPACKED_BYTES_MAX = 4 << 30
"""The maximum size of a decompressed object, if its expected size is unknown."""

Convert = Callable[[Any], Any]


def check_format(format: str) -> str:
    if format not in FORMATS:
        raise InvalidSetting(f"The format {format!r} is unknown.", hint=f"It must be one of {', '.join(FORMATS)}.")
    return format


def encoded(rows: pa.Table, format: str, schema: Schema) -> memoryview:
    """The rows as the bytes of one object. The schema distinguishes `json` columns from other text."""
    if format == "parquet":
        return _parquet(_in_one_form(rows))
    return _packed(_lines(_in_one_form(rows), schema), format)


def holds_rows(content: bytes, rows: pa.Table, format: str, schema: Schema) -> bool:
    """Whether the bytes of an object are exactly these rows, in this order. `ValueError` if it cannot be read."""
    if format == "parquet":
        return _parquet_holds(content, rows)
    expected = _lines(_in_one_form(rows), schema)
    found = _unpacked(content, format, bytes_max=2 * len(expected) + _SLACK_BYTES)
    return found == expected or _same_lines(found, expected)


def decoded(content: bytes, format: str, schema: Schema) -> pa.Table:
    """The rows of an object, in the types of the schema. `ValueError` if it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if format != "parquet":
        return _rows_of_lines(_unpacked(content, format, bytes_max=UNPACKED_BYTES_MAX), schema)
    try:
        rows = pq.read_table(pa.BufferReader(content), page_checksum_verification=True)
        return rows if not rows.column_names else _in_one_form(rows)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error


def _rows_of_lines(lines: bytes, schema: Schema) -> pa.Table:
    """Lines have the forms that capture accepts, so capture's parser reads them."""
    from floodmark.errors import FloodmarkError
    from floodmark.jsonread import read_json
    from floodmark.rows.fit import fit, rows_to_columns

    if lines and not lines.endswith(b"\n"):
        raise ValueError("its last line is incomplete")
    rows = [read_json(line) for line in lines.split(b"\n")[:-1]]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a line of it is not an object")
    try:
        names, values = rows_to_columns(rows)
        fitted = fit(schema, names, values, rows=len(rows))
    except FloodmarkError as error:
        raise ValueError(error.message) from error
    if fitted.misfits:
        raise ValueError(f"row {fitted.misfits[0].row + 1} of it does not fit: {fitted.misfits[0].reason}")
    return fitted.table


def _in_one_form(rows: pa.Table) -> pa.Table:
    """The rows in canonical types, each column in one chunk: the bytes of Parquet pages depend on the chunks."""
    import pyarrow as pa

    fields, arrays = [], []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        kind = from_arrow(field.type, column=field.name)
        wanted = field.type if kind is None else to_arrow(kind)
        whole = column if column.type == wanted else column.cast(wanted)
        arrays.append(whole.chunk(0) if whole.num_chunks == 1 else whole.combine_chunks())
        fields.append(pa.field(field.name, wanted))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields)) if fields else rows.select([])


# ── Parquet ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _parquet(rows: pa.Table) -> memoryview:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = pa.BufferOutputStream()
    pq.write_table(
        rows,
        buffer,
        compression="zstd",
        compression_level=_ZSTD_LEVEL,
        # A dictionary that exceeds its limit is discarded: it is useful only if values repeat.
        use_dictionary=[name for name in rows.column_names if _repeats(rows[name])],
        row_group_size=ROW_GROUP_ROWS,
        write_batch_size=8192,
        store_schema=False,  # Parquet's own types are sufficient
        write_page_checksum=True,  # costs nothing, and a reader can detect a damaged object
    )
    return memoryview(buffer.getvalue()).cast("B")


def _repeats(column: pa.ChunkedArray) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_nested(column.type) or pa.types.is_boolean(column.type):
        return False
    sample = column.slice(0, SAMPLE_ROWS)
    return bool(2 * pc.count_distinct(sample).as_py() <= len(sample))


def _parquet_holds(content: bytes, rows: pa.Table) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = _in_one_form(rows)
    try:
        found = pq.read_table(pa.BufferReader(content))
        # A column with nulls only equals a missing column: whether it is written depends on when it was added.
        extra = [name for name in found.column_names if name not in wanted.column_names]
        if found.num_rows != wanted.num_rows or any(found[name].null_count < found.num_rows for name in extra):
            return False
        arrays = [
            found[field.name].cast(field.type) if field.name in found.column_names else pa.nulls(len(found), field.type)
            for field in wanted.schema
        ]
        same = _in_one_form(pa.Table.from_arrays(arrays, schema=wanted.schema))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error
    # Compared by bytes, not by Arrow: there NaN never equals NaN.
    return _parquet(same) == _parquet(wanted)


# ── JSON lines ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _lines(rows: pa.Table, schema: Schema) -> bytes:
    import orjson

    names = rows.column_names
    columns = [_json_values(rows[name], _kind_of(rows.field(name), schema)) for name in names]
    return b"".join(
        orjson.dumps(dict(zip(names, values, strict=True)), option=orjson.OPT_APPEND_NEWLINE)
        for values in zip(*columns, strict=True)
    )


def _kind_of(field: pa.Field, schema: Schema) -> ColumnType | None:
    known = schema.get(field.name)
    return from_arrow(field.type, column=field.name) if known is None else known.type


def _json_values(column: pa.ChunkedArray, kind: ColumnType | None) -> list[Any]:
    import pyarrow.compute as pc

    if kind == TIMESTAMP:
        column = _instant_texts(column)
    values: list[Any] = column.to_pylist()
    if kind in {FLOAT, DOUBLE} and pc.all(pc.is_finite(column), min_count=0).as_py():
        return values
    convert = None if kind is None else _conversion(kind)
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _instant_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Instants as `datetime.isoformat` writes them. Python objects would take ten times as long."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = column.cast(pa.timestamp("us")).cast(pa.string())
    texts = pc.replace_substring(pc.replace_substring(texts, " ", "T"), ".000000", "")
    return pc.binary_join_element_wise(texts, "+00:00", "")


def _conversion(kind: ColumnType) -> Convert | None:
    """Converts a value of the type to JSON; None if no conversion is needed."""
    if isinstance(kind, ListType):
        inside = _conversion(kind.element)
        return None if inside is None else lambda items: [None if item is None else inside(item) for item in items]
    if isinstance(kind, StructType):
        return _struct_conversion(kind)
    if isinstance(kind, DecimalType):
        return str
    simple: dict[ColumnType, Convert] = {JSON: _fragment, BINARY: _base64, FLOAT: _number, DOUBLE: _number}
    return simple.get(kind)


def _struct_conversion(kind: StructType) -> Convert | None:
    inside: dict[str, Convert] = {}
    for name, field in kind.fields:
        convert = _conversion(field)
        if convert is not None:
            inside[name] = convert

    def whole(value: Any) -> Any:
        return {
            name: inside[name](item) if name in inside and item is not None else item for name, item in value.items()
        }

    if not inside:
        return None
    return whole


def _fragment(text: str) -> Any:
    import orjson

    return orjson.Fragment(text)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _number(value: float) -> float | str:
    from floodmark.rows.jsontext import float_text

    return value if math.isfinite(value) else float_text(value)


def _packed(lines: bytes, format: str) -> memoryview:
    import pyarrow as pa

    if format == "jsonl.gz":
        return memoryview(gzip.compress(lines, compresslevel=4, mtime=0))
    if format == "jsonl.zst":
        return memoryview(pa.Codec("zstd", compression_level=3).compress(lines, asbytes=True))
    return memoryview(lines)


def _unpacked(content: bytes, format: str, *, bytes_max: int) -> bytes:
    """The lines of an object. More than `bytes_max` are not decompressed."""
    import pyarrow as pa

    if format == "jsonl":
        return content
    try:
        if format == "jsonl.gz":
            with gzip.open(io.BytesIO(content)) as file:
                found = read_at_most(file.read, bytes_max + 1)
        else:
            with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
                found = read_at_most(stream.read, bytes_max + 1)
    except (EOFError, OSError, zlib.error, pa.ArrowException) as error:
        raise ValueError(str(error)) from error
    if len(found) > bytes_max:
        raise ValueError("it is far longer than these rows")
    return found


def read_at_most(read: Callable[[int], bytes], bytes_max: int) -> bytes:
    """Up to this many bytes, in pieces: for one large read Arrow would allocate all of it at once."""
    found = bytearray()
    while len(found) < bytes_max and (piece := read(min(_PIECE_BYTES, bytes_max - len(found)))):
        found += piece
    return bytes(found)


def _same_lines(found: bytes, expected: bytes) -> bool:
    return all(left == right for left, right in zip_longest(_canonical_lines(found), _canonical_lines(expected)))


def _canonical_lines(content: bytes) -> Iterator[bytes]:
    """Each line with its keys sorted and its nulls left out: null is the absence of a value."""
    import orjson

    for line in content.splitlines():
        row = orjson.loads(line)
        if not isinstance(row, dict):
            raise ValueError("a line of it is not an object")  # noqa: TRY004 - one error for every other content
        values = {name: value for name, value in row.items() if value is not None}
        yield orjson.dumps(values, option=orjson.OPT_SORT_KEYS)
