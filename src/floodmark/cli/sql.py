"""`floodmark sql`"""

from __future__ import annotations

import click

from floodmark.cli.options import open_store
from floodmark.cli.output import working
from floodmark.cli.rowtext import FORMATS, row_writer
from floodmark.errors import Permanent


@click.command()
@click.argument("query")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="table", show_default=True, help="How to print.")
@click.option("--limit", type=click.IntRange(min=1), help="At most this many rows.")
def sql(query: str, kind: str, limit: int | None) -> None:
    """Run a SQL query over the datasets.

    Every dataset is a view of its name, with the columns you captured. The SQL is Spark's.

    \b
    Examples:
      floodmark sql "SELECT source, count(*) AS rows FROM messages GROUP BY source"
      floodmark sql "SELECT * FROM orders WHERE total > 100" --format csv > orders.csv
    """
    with open_store() as store:
        try:
            with working("Running the query …"):
                frame = store.sql(query)
                result = (frame if limit is None else frame.limit(limit)).toArrow()
        except Exception as error:
            if not type(error).__module__.startswith("pyspark.errors"):
                raise
            raise Permanent(
                f"The query failed: {str(error).strip().splitlines()[0]}",
                hint="`floodmark dataset list` shows the datasets and their columns.",
            ) from error
    writer = row_writer(kind, result.column_names)
    for batch in result.to_batches(max_chunksize=10_000):
        writer.write(batch.to_pylist())
    writer.finish()
