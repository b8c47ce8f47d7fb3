"""`floodmark sql`"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import click

from floodmark.cli.options import open_store
from floodmark.cli.output import NOTHING, working
from floodmark.cli.rowtext import FORMATS, row_writer
from floodmark.errors import Permanent


@click.command()
@click.argument("query")
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), default="table", show_default=True, help="The output format."
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as one JSON document: --format json.")
@click.option("--limit", type=click.IntRange(min=1), help="At most this many rows.")
@click.option("--pending", is_flag=True, help="Also rows that are captured and not committed yet, exactly once.")
def sql(query: str, kind: str, as_json: bool, limit: int | None, *, pending: bool) -> None:
    """Run a SQL query over the datasets.

    The SQL dialect is Spark's. Every dataset is a view with the dataset's name and the captured columns. Tables of
    [catalogs.NAME] in floodmark.toml are available as NAME.namespace.table.

    \b
    Examples:
      floodmark sql "SELECT source, count(*) AS rows FROM messages GROUP BY source"
      floodmark sql "SELECT * FROM orders WHERE total > 100" --format csv > orders.csv
      floodmark sql "SELECT count(*) FROM orders" --pending
    """
    with open_store() as store, working("Running the query …", left=NOTHING), _without_the_log():
        try:
            frame = store.sql(query, pending=pending)
            result = (frame if limit is None else frame.limit(limit)).toArrow()
        except Exception as error:
            if not type(error).__module__.startswith("pyspark.errors"):
                raise
            raise Permanent(
                f"The query failed: {str(error).strip().splitlines()[0]}",
                hint="`floodmark dataset list` shows the datasets and their columns.",
            ) from error
    writer = row_writer("json" if as_json else kind, result.column_names)
    for batch in result.to_batches(max_chunksize=10_000):
        writer.write(batch.to_pylist())
    writer.finish()


@contextlib.contextmanager
def _without_the_log() -> Iterator[None]:
    """PySpark also logs the errors that it raises, with the Java stack trace; one message is enough here."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
