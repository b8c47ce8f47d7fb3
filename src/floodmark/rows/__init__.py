"""The one parser: rows fitted to a schema, the landing log's envelope, content hashes. Pure."""

from floodmark.rows.content import content_ids, partition_figures, tally
from floodmark.rows.envelope import Envelope, MalformedEnvelope, decode_envelope, encode_envelope
from floodmark.rows.fit import Fit, Misfit, fit, fit_table, reasons_by_row, rows_to_columns

__all__ = [
    "Envelope",
    "Fit",
    "MalformedEnvelope",
    "Misfit",
    "content_ids",
    "decode_envelope",
    "encode_envelope",
    "fit",
    "fit_table",
    "partition_figures",
    "reasons_by_row",
    "rows_to_columns",
    "tally",
]
