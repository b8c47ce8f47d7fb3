"""The metrics of a scrape: counters that all workers share, and the store's present figures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from floodmark.control import ledger
from floodmark.control.ledger import OriginTotals
from floodmark.engine import Engine
from floodmark.status import DatasetStatus, read_status

SHARED_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Where workers store their counters, so that each can report for all; prometheus_client reads it at import."""
SERIES_MAX = 1000
"""How many datasets, and pairs of store and dataset, have their own series: this bounds a scrape."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """One worker's counters."""

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._store = StoreFigures(engine)
        self.requests = Counter(
            "floodmark_hub_requests", "Requests answered.", ["route", "status"], registry=self._registry
        )
        self.rows = Counter("floodmark_hub_rows", "Rows stored.", ["route", "dataset"], registry=self._registry)
        self.bytes = Counter(
            "floodmark_hub_body_bytes", "Bytes of bodies received.", ["route"], registry=self._registry
        )
        self.seconds = Histogram(
            "floodmark_hub_request_seconds",
            "Seconds from a request's headers to its response.",
            ["route"],
            registry=self._registry,
            buckets=_SECONDS,
        )

    def text(self) -> bytes:
        """The response to a scrape."""
        registry = self._registry
        if os.environ.get(SHARED_VARIABLE):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        figures = CollectorRegistry()
        figures.register(self._store)
        return generate_latest(registry) + generate_latest(figures)


@dataclass(frozen=True, slots=True, eq=False)  # a registry stores collectors by identity
class StoreFigures(Collector):
    """The store's figures, from the control database."""

    engine: Engine

    def collect(self) -> Iterator[Metric]:
        status = read_status(self.engine)
        figures: dict[str, tuple[str, Callable[[DatasetStatus], int]]] = {
            "floodmark_dataset_rows": ("Rows committed.", lambda item: item.rows),
            "floodmark_dataset_horizon": (
                "The sequence number up to which every row is visible.",
                lambda item: item.horizon,
            ),
            "floodmark_spool_bytes": (
                "Bytes that wait to be committed.",
                lambda item: item.spool.landing_bytes + item.spool.segment_bytes,
            ),
            "floodmark_spool_segments": ("Segments that wait to be committed.", lambda item: item.spool.segments),
            "floodmark_spool_segment_rows": ("Rows in those segments.", lambda item: item.spool.segment_rows),
            "floodmark_quarantined_rows": ("Rows in quarantine.", lambda item: item.quarantined),
        }
        for name, (words, value) in figures.items():
            family = GaugeMetricFamily(name, words, labels=["dataset"])
            for item in status.datasets[:SERIES_MAX]:
                family.add_metric([item.name], value(item))
            yield family
        limit = GaugeMetricFamily("floodmark_spool_bytes_max", "The limit of bytes in a dataset's spool.")
        limit.add_metric([], self.engine.settings.spool.backlog_bytes_max)
        yield limit
        yield from self._ledger()

    def _ledger(self) -> Iterator[Metric]:
        labels = ["origin", "dataset"]
        channels = GaugeMetricFamily("floodmark_ledger_channels", "Channels in the ledger.", labels=labels)
        rows = GaugeMetricFamily("floodmark_ledger_rows", "Rows received through these channels.", labels=labels)
        totals = sorted(self.engine.database.read(ledger.totals), key=lambda item: -item.rows)
        named, others = totals[:SERIES_MAX], totals[SERIES_MAX:]
        if others:
            together = OriginTotals("", "", sum(item.channels for item in others), sum(item.rows for item in others))
            named.append(together)
        for item in named:
            channels.add_metric([item.origin, item.dataset], item.channels)
            rows.add_metric([item.origin, item.dataset], item.rows)
        yield channels
        yield rows
