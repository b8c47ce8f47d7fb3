"""The one parser: rows fitted to a schema, the landing log's envelope, content hashes. Pure."""

from floodmark.rows.content import content_ids, partition_stats, tally
from floodmark.rows.envelope import Envelope, MalformedEnvelope, decode_envelope, encode_envelope, row_payload
from floodmark.rows.fit import (
    Demands,
    Fit,
    FittedRows,
    Misfit,
    fit,
    fit_each,
    fit_rows,
    fit_table,
    reasons_by_row,
    rows_to_columns,
)
from floodmark.rows.textlines import Problem

__all__ = [
    "Demands",
    "Envelope",
    "Fit",
    "FittedRows",
    "MalformedEnvelope",
    "Misfit",
    "Problem",
    "content_ids",
    "decode_envelope",
    "encode_envelope",
    "fit",
    "fit_each",
    "fit_rows",
    "fit_table",
    "partition_stats",
    "reasons_by_row",
    "row_payload",
    "rows_to_columns",
    "tally",
]
