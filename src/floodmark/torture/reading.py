"""Reading destinations back, with other code than what wrote to them."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from floodmark.delivery.credentials import Credential
from floodmark.delivery.sinks.objects import RemoteObjects, place_of
from floodmark.errors import Permanent
from floodmark.lake.catalog import Catalog
from floodmark.lake.catalogs import configured
from floodmark.schema import SEQ
from floodmark.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

Rows = list[dict[str, Any]]

_OBJECT = re.compile(r"(?P<folder>.*)/(?P<after>[0-9]+)-[0-9]+\.(?P<format>parquet|jsonl|jsonl\.gz|jsonl\.zst)")
_ANSWER_SECONDS_MAX = 30.0


# ── the lake ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def lake_rows(store: Store, dataset: str) -> Rows:
    """A dataset's rows in the order of their numbers, as PyIceberg finds them in its table."""
    declared = next(item for item in store.datasets() if item.name == dataset)
    lake = store.path / "lake"
    catalog = Catalog.embedded(name=f"floodmark_{store.store_id.replace('-', '')[:12]}", lake=lake)
    return _table(catalog, declared.table_name, SEQ)


def target_rows(store: Store, name: str) -> Rows:
    """The rows of a table that was delivered to, in the order of their numbers."""
    catalog, namespace, table = name.split(".")
    if catalog in store.settings.catalogs:
        described = configured(catalog, store.settings.catalogs[catalog], namespace=namespace)
        return _table(described, table, "_origin_seq")
    frame = store.spark.sql(f"SELECT * FROM `{catalog}`.`{namespace}`.`{table}` ORDER BY _origin_seq")  # noqa: S608 - names
    return [row.asDict(recursive=True) for row in frame.collect()]


def drop_target(store: Store, name: str) -> str | None:
    """Remove a table with its files; returns the location where killed attempts may have left unreferenced files."""
    catalog, namespace, table = name.split(".")
    if catalog not in store.settings.catalogs:
        store.spark.sql(f"DROP TABLE IF EXISTS `{catalog}`.`{namespace}`.`{table}` PURGE")
        return None
    described = configured(catalog, store.settings.catalogs[catalog], namespace=namespace)
    loaded = described.table(table)
    if loaded is None:
        return None
    place = str(loaded.location())
    described.python.purge_table((namespace, table))
    local = place.startswith(("file:", "/"))
    if local:
        shutil.rmtree(unquote(re.sub("^file:/+", "/", place)), ignore_errors=True)
    return None if local else place


def _table(catalog: Catalog, table: str, by: str) -> Rows:
    loaded = catalog.table(table)
    if loaded is None:
        return []
    rows: Rows = loaded.scan().to_arrow().sort_by(by).to_pylist()
    return rows


# ── objects ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Objects:
    """Everything below the place of a blob sink."""

    settings: Mapping[str, Any]

    def rows(self, dataset: str) -> Rows:
        """The rows of a dataset's objects, partition by partition in the order of their ranges."""
        own = [name for name in self.names() if name.startswith(f"{dataset}/")]
        names = [match for name in own if (match := _OBJECT.fullmatch(name))]
        ordered = sorted(names, key=lambda match: (match["folder"], int(match["after"])))
        return [row for match in ordered for row in _decoded(self._read(match[0]), match["format"])]

    def names(self) -> list[str]:
        place = place_of(self.settings)
        if isinstance(place, RemoteObjects):
            import obstore

            return [meta["path"] for page in obstore.list(_bucket(place)) for meta in page]
        root = self._directory()
        found = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
        # A name with a leading dot is an incomplete object of a killed process.
        return [str(path) for path in found if not path.name.startswith(".")]

    def remove(self) -> None:
        place = place_of(self.settings)
        if isinstance(place, RemoteObjects):
            import obstore

            obstore.delete(_bucket(place), self.names())
        elif self._directory().exists():
            shutil.rmtree(self._directory())

    def _read(self, name: str) -> bytes:
        place = place_of(self.settings)
        if isinstance(place, RemoteObjects):
            import obstore

            return obstore.get(_bucket(place), name).bytes().to_bytes()
        return (self._directory() / name).read_bytes()

    def _directory(self) -> Path:
        return Path(unquote(str(self.settings["url"]).removeprefix("file://")))


def _bucket(place: RemoteObjects) -> Any:
    from obstore.store import AzureStore, GCSStore, S3Store

    kinds: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    plain = any(value.startswith("http://") for _, value in place.options)
    config = {**dict(place.options), **dict(place.credentials)}
    options = {"allow_http": plain}
    return kinds[place.scheme](place.bucket, prefix=place.prefix or None, config=config, client_options=options)


def _decoded(content: bytes, format: str) -> Rows:
    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq

    if format == "parquet":
        table: pa.Table = pq.read_table(io.BytesIO(content))
        rows: Rows = table.to_pylist()
        return rows
    packed = {"jsonl.gz": "gzip", "jsonl.zst": "zstd"}.get(format)
    if packed is not None:
        content = pa.CompressedInputStream(pa.BufferReader(content), packed).read()
    return [orjson.loads(line) for line in content.splitlines() if line]


# ── a hub ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Ledger:
    """A hub's ledger, requested like by any client."""

    url: str
    token: str | None
    origin: str

    def channels(self, dataset: str) -> dict[str, tuple[int, int]]:
        """For each partition: up to which number it has everything, and how many rows that is."""
        import httpx

        proof = {} if self.token is None else {"Authorization": f"Bearer {Credential(self.token).text()}"}
        try:
            answer = httpx.get(
                f"{self.url}/v1/ledger/{quote(self.origin, safe='')}",
                params={"dataset": dataset},
                headers=proof,
                timeout=_ANSWER_SECONDS_MAX,
            )
        except httpx.HTTPError as error:
            raise Permanent(f"The hub at {self.url} does not respond: {error}.", hint="Is it running?") from None
        if answer.status_code in {401, 403}:
            raise Denied(f"The hub at {self.url} refused the sink's token for the rows of this run.")
        if answer.status_code != 200:
            raise Permanent(f"{self.url} has no ledger (status {answer.status_code}).")
        channels = answer.json()["channels"]
        return {item["partition"]: (item["through"], item["rows"]) for item in channels if item["dataset"] == dataset}


class Denied(Permanent):
    """The token is not for this."""
