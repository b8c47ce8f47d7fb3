"""A blob sink holds each row once, in a directory and in a bucket, whoever delivers, again or late or elsewhere."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.control.deliveries import Channel
from floodmark.delivery.destination import Parcel
from floodmark.delivery.outcomes import Busy, Oversized
from floodmark.delivery.sinks.blob import CLAIM, KIND, BlobSink
from floodmark.delivery.sinks.formats import FORMATS, encoded
from floodmark.delivery.sinks.objects import SECRET as SECRET_SETTINGS
from floodmark.delivery.sinks.objects import ObjectPlace, place_of
from floodmark.errors import DivergedHistory, InvalidSetting, Permanent
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange, Tally
from floodmark.store import Store
from floodmark.testing import MemoryLake, crash_at, kill_store
from s3 import SECRET, Reply, Request, S3Server, ScriptedServer, scripted, settings

SCHEMA = Schema.declare({"n": "long", "text": "string"})
CHANNEL = Channel("sink-1", "m", "all")

Settings = dict[str, Any]


@pytest.fixture(params=["local", "s3"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The settings of an empty place."""
    if request.param == "local":
        return {"url": (tmp_path / "objects here").as_uri()}
    server: S3Server = request.getfixturevalue("s3_server")
    return server.settings(f"s3://{server.create_bucket()}/objects")


def sink_at(where: Settings, *, store: str = "store-1", sink: str = "sink-1", **further: Any) -> BlobSink:
    whole = {**KIND.defaults, **where, **further}
    KIND.check(whole)
    return BlobSink(whole, SCHEMA, store_id=store, sink=sink)


def parcel(after: int, through: int, *numbers: int, channel: Channel = CHANNEL, text: str = "x") -> Parcel:
    rows = pa.table({"n": pa.array(numbers, pa.int64()), "text": [text] * len(numbers)}, schema=SCHEMA.arrow())
    sequence = pa.chunked_array([pa.array(range(after + 1, after + 1 + len(numbers)), pa.int64())])
    return Parcel(channel, SequenceRange(after, through), rows, sequence, sequence.cast(pa.string()), Tally())


def contents(place: ObjectPlace, folder: str = "m/all") -> dict[str, bytes | None]:
    return {name: place.read(f"{folder}/{name}") for name in sorted(place.list(folder))}


# ── one object for each range ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("format", FORMATS)
def test_a_repeated_delivery_meets_its_own_object(where: Settings, format: str) -> None:
    sink = sink_at(where, format=format)
    sink.open()

    first = sink.deliver(parcel(0, 3, 1, 2, 3))
    again = sink_at(where, format=format).deliver(parcel(0, 3, 1, 2, 3))

    assert first == again
    assert list(contents(sink.place)) == [f"0-3.{format}"]
    assert first.bytes == len(contents(sink.place)[f"0-3.{format}"] or b"")


def test_other_exporters_at_the_same_time_change_nothing(where: Settings) -> None:
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda _: sink_at(where).deliver(parcel(0, 3, 1, 2, 3)), range(6)))

    assert len(set(done)) == 1
    assert list(contents(sink_at(where).place)) == ["0-3.parquet"]


@pytest.mark.parametrize("format", FORMATS)
def test_bytes_of_another_version_are_recognised_by_their_rows(where: Settings, format: str) -> None:
    sink = sink_at(where, format=format)
    rows = parcel(0, 3, 1, 2, 3).rows
    other = encoded(rows.append_column("late", pa.nulls(3, pa.string())), format, SCHEMA)
    sink.place.create(f"m/all/0-3.{format}", other)

    sink.deliver(parcel(0, 3, 1, 2, 3))

    assert contents(sink.place) == {f"0-3.{format}": bytes(other)}


@pytest.mark.parametrize("format", FORMATS)
def test_a_late_exporter_with_other_rows_overwrites_nothing(where: Settings, format: str) -> None:
    """Retention has removed rows since; what was delivered before stays as it is."""
    sink = sink_at(where, format=format)
    sink.deliver(parcel(0, 3, 1, 2, 3))
    before = contents(sink.place)

    with pytest.raises(DivergedHistory, match=r"0-3\..* holds other rows for the range \(0, 3\]") as refused:
        sink_at(where, format=format).deliver(parcel(0, 3, 3))

    assert "new prefix" in (refused.value.hint or "")
    assert contents(sink.place) == before


@pytest.mark.parametrize("format", FORMATS)
def test_an_object_of_somebody_else_is_told_and_kept(where: Settings, format: str) -> None:
    sink = sink_at(where, format=format)
    sink.place.create(f"m/all/0-3.{format}", b"not ours")

    with pytest.raises(DivergedHistory, match=rf"0-3\.{format}"):
        sink.deliver(parcel(0, 3, 1, 2, 3))

    assert contents(sink.place) == {f"0-3.{format}": b"not ours"}


def test_a_stretch_without_rows_has_no_object(where: Settings) -> None:
    sink = sink_at(where)
    assert sink.deliver(parcel(0, 3)).bytes == 0
    assert contents(sink.place) == {}


# ── a prefix belongs to one sink of one store ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("other", [{"store": "store-2"}, {"sink": "sink-2"}])
def test_two_stores_or_sinks_cannot_share_a_prefix(where: Settings, other: dict[str, str]) -> None:
    sink_at(where).open()

    with pytest.raises(Permanent, match="belongs to another sink or store") as refused:
        sink_at(where, **other).open()

    assert refused.value.hint
    sink_at(where).open()  # it is still the first one's
    claim = sink_at(where).place.read(CLAIM)
    assert claim is not None
    assert json.loads(claim) == {"store": "store-1", "sink": "sink-1"}


def test_of_several_that_claim_a_prefix_at_once_one_gets_it(where: Settings) -> None:
    def claimed(number: int) -> bool:
        try:
            sink_at(where, store=f"store-{number}").open()
        except Permanent:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(claimed, range(6))) == 1


def test_a_prefix_signed_in_a_way_that_nobody_reads_is_refused(where: Settings) -> None:
    sink = sink_at(where)
    sink.place.create(CLAIM, b"rubbish")
    with pytest.raises(Permanent, match="belongs to another"):
        sink.open()


def test_a_store_that_ignores_preconditions_is_refused_before_anything_is_sent() -> None:
    """It would let two exporters overwrite each other's objects."""
    stored: dict[str, bytes] = {}

    def answer(request) -> Reply:
        if request.method == "PUT":
            stored[request.path] = request.body
            return Reply(200, headers={"ETag": '"1"'})
        found = stored.get(request.path)
        return Reply(404, b"<Error><Code>NoSuchKey</Code></Error>") if found is None else Reply(200, found)

    with scripted(answer) as server, pytest.raises(Permanent, match="replaces an object") as refused:
        sink_at(settings("s3://bucket/prefix", server.endpoint)).open()
    assert "If-None-Match" in (refused.value.hint or "")


@contextmanager
def without_conditions(server: S3Server, ignored: Callable[[], bool]) -> Iterator[ScriptedServer]:
    """A proxy before a real server that leaves If-None-Match out of what it passes on, while it is told to."""

    def answer(request: Request) -> Reply:
        dropped = {"host", "content-length", "connection", *(["if-none-match"] if ignored() else [])}
        headers = {name: value for name, value in request.headers.items() if name not in dropped}
        got = httpx.request(
            request.method, f"{server.endpoint}{request.path}", headers=headers, content=request.body, timeout=30
        )
        kept = {name: value for name, value in got.headers.items() if name.lower() in {"etag", "last-modified"}}
        return Reply(got.status_code, got.content, kept)

    with scripted(answer) as proxy:
        yield proxy


def test_a_store_that_ignores_preconditions_is_refused_at_every_opening(s3_server: S3Server) -> None:
    """The claim of before proves nothing about the server that answers now."""
    url = f"s3://{s3_server.create_bucket()}/objects"
    honest = sink_at(s3_server.settings(url))
    honest.open()
    honest.place.create("m/all/0-3.parquet", b"somebody else's")
    with without_conditions(s3_server, lambda: True) as proxy:
        for _ in range(2):
            with pytest.raises(Permanent, match="replaces an object"):
                sink_at(settings(url, proxy.endpoint)).open()
    assert contents(honest.place) == {"0-3.parquet": b"somebody else's"}
    honest.open()


def test_a_foreign_claim_is_not_replaced_to_find_out_whether_it_would_be(s3_server: S3Server) -> None:
    url = f"s3://{s3_server.create_bucket()}/objects"
    sink_at(s3_server.settings(url), sink="sink-2").open()
    with (
        without_conditions(s3_server, lambda: True) as proxy,
        pytest.raises(Permanent, match="belongs to another"),
    ):
        sink_at(settings(url, proxy.endpoint)).open()
    sink_at(s3_server.settings(url), sink="sink-2").open()


def test_a_store_that_stops_honouring_preconditions_blocks_the_sink_before_anything_is_acknowledged(
    store: Store, s3_server: S3Server
) -> None:
    url, ignoring = f"s3://{s3_server.create_bucket()}/objects", False
    store.add_dataset("m", schema={"n": "long", "text": "string"})
    with without_conditions(s3_server, lambda: ignoring) as proxy:
        store.add_sink("archive", "blob", chunk_rows=3, **settings(url, proxy.endpoint))
        capture(store, 1, 2, 3)
        assert store.export("archive").rows == 3
        place = place_of({**KIND.defaults, **s3_server.settings(url)})
        place.create("m/all/3-6.parquet", b"somebody else's")
        ignoring = True
        capture(store, 4, 5, 6)

        report = store.export("archive")

        assert "m/all/3-6.parquet was written now; if another object had that name, it was replaced" in report.blocked
        assert store.watermark("archive", "m") == 3
        assert store.sinks()[0].state == "blocked"
        ignoring = False
        assert store.export("archive").blocked is None
        assert store.watermark("archive", "m") == 6


def test_an_object_costs_two_requests_and_an_opening_two(s3_server: S3Server) -> None:
    url = f"s3://{s3_server.create_bucket()}/objects"
    sink_at(s3_server.settings(url)).open()
    with without_conditions(s3_server, lambda: False) as proxy:
        sink = sink_at(settings(url, proxy.endpoint))
        sink.open()
        assert [request.method for request in proxy.requests] == ["GET", "PUT"]
        proxy.requests.clear()
        sink.deliver(parcel(0, 3, 1, 2, 3))
        assert [request.method for request in proxy.requests] == ["PUT", "PUT"]


def test_an_object_that_is_being_written_elsewhere_is_waited_for() -> None:
    """S3 answers 409 while another conditional write of the key is under way; there may never be an object."""
    conflict = Reply(409, b"<Error><Code>ConditionalRequestConflict</Code></Error>")
    missing = Reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
    with scripted(lambda request: conflict if request.method == "PUT" else missing) as server:
        sink = sink_at(settings("s3://bucket/prefix", server.endpoint))
        with pytest.raises(Busy, match=r"0-3\.parquet is being written"):
            sink.deliver(parcel(0, 3, 1, 2, 3))
        with pytest.raises(Busy, match="is being claimed"):
            sink.open()


# ── what the names of objects remember ───────────────────────────────────────────────────────────────────────────────


def test_what_is_there_beyond_a_number_is_told_in_order(where: Settings) -> None:
    sink = sink_at(where)
    for after, through in ((0, 9), (9, 10), (10, 100), (110, 200)):
        sink.deliver(parcel(after, through, 1))
    sink_at(where, format="jsonl.gz").deliver(parcel(200, 201, 1))
    sink.deliver(parcel(300, 400, 1, channel=Channel("sink-1", "m", "site=a")))

    def ranges(after: int) -> list[tuple[int, int]]:
        return [(item.after, item.through) for item in sink.held(CHANNEL, after=after).ranges]

    assert ranges(0) == [(0, 9), (9, 10), (10, 100), (110, 200), (200, 201)]
    assert ranges(10) == [(10, 100), (110, 200), (200, 201)]
    assert ranges(105) == [(110, 200), (200, 201)]
    assert ranges(201) == []


def test_names_that_no_sink_gives_are_somebody_elses(where: Settings) -> None:
    sink = sink_at(where)
    names = ["_SUCCESS", "0-3.csv", "0-3.parquet.bak", "00-3.parquet", "3-3.parquet", "9-3.jsonl", "-1-3.jsonl", "0-3"]
    for name in [*names, f"0-{2**63}.jsonl", "deeper/0-3.parquet"]:
        sink.place.create(f"m/all/{name}", b"x")

    assert sink.held(CHANNEL, after=0).ranges == ()


def test_an_object_of_another_history_is_told(where: Settings) -> None:
    sink = sink_at(where)
    sink.deliver(parcel(0, 10, 1))
    with pytest.raises(DivergedHistory, match=r"\(0, 10\].*only a part") as straddling:
        sink.held(CHANNEL, after=5)
    sink.deliver(parcel(8, 12, 1))
    with pytest.raises(DivergedHistory, match=r"\(0, 10\] and \(8, 12\]") as overlapping:
        sink.held(CHANNEL, after=0)
    assert straddling.value.hint
    assert overlapping.value.hint


def test_the_same_rows_in_two_formats_are_told(where: Settings) -> None:
    for format in ("parquet", "jsonl"):
        sink_at(where, format=format).deliver(parcel(0, 3, 1, 2, 3))
    with pytest.raises(DivergedHistory, match="have the same rows"):
        sink_at(where).held(CHANNEL, after=0)


def test_what_is_there_in_an_older_format_gets_no_second_copy(where: Settings) -> None:
    sink_at(where, format="jsonl.zst").deliver(parcel(0, 3, 1, 2, 3))
    sink = sink_at(where, format="parquet")
    assert sink.held(CHANNEL, after=0).ranges == (SequenceRange(0, 3),)

    sink.deliver(parcel(0, 3, 1, 2, 3))
    sink.deliver(parcel(3, 6, 4, 5, 6))

    assert list(contents(sink.place)) == ["0-3.jsonl.zst", "3-6.parquet"]
    with pytest.raises(DivergedHistory, match=r"0-3\.jsonl\.zst holds other rows"):
        sink.deliver(parcel(0, 3, 1, 2, 4))


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_of_more_bytes_than_a_chunk_may_have_are_to_be_split(where: Settings) -> None:
    sink = sink_at(where, chunk_bytes=1_000)

    with pytest.raises(Oversized):
        sink.deliver(parcel(0, 3, 1, 2, 3, text="x" * 500))

    assert contents(sink.place) == {}
    sink.deliver(parcel(0, 2, 1, 2, text="x" * 400))
    sink.deliver(parcel(2, 3, 3, text="x" * 5_000))  # a single row has nothing to be split into
    assert list(contents(sink.place)) == ["0-2.parquet", "2-3.parquet"]


def test_an_object_that_was_made_under_a_larger_limit_is_not_cut_anew(where: Settings) -> None:
    """The halves would hold its rows a second time."""
    big = parcel(0, 3, 1, 2, 3, text="x" * 500)
    sink_at(where).deliver(big)

    sink_at(where, chunk_bytes=1_000).deliver(big)

    assert list(contents(sink_at(where).place)) == ["0-3.parquet"]


# ── a whole store ────────────────────────────────────────────────────────────────────────────────────────────────────


def delivered(place: ObjectPlace, folder: str) -> list[int]:
    names = sorted(place.list(folder), key=lambda name: int(name.split("-")[0]))
    tables = [pq.read_table(pa.BufferReader(place.read(f"{folder}/{name}"))) for name in names]
    return [n for table in tables for n in table["n"].to_pylist()]


def capture(store: Store, *numbers: int) -> None:
    store.capture("m", [{"n": number, "text": "x"} for number in numbers])
    store.flush("m")


@pytest.fixture
def archive(store: Store, where: Settings) -> ObjectPlace:
    store.add_dataset("m", schema={"n": "long", "text": "string"})
    store.add_sink("archive", "blob", chunk_rows=3, **where)
    return place_of({**KIND.defaults, **where})


@pytest.mark.parametrize("point", ["delivery.pinned", "delivery.planned", "delivery.shipped", "delivery.acknowledged"])
def test_a_crash_and_new_rows_before_the_retry_double_nothing(
    store: Store, archive: ObjectPlace, reopen: Callable[[], Store], point: str
) -> None:
    """D1: names come from ranges that were pinned before; they neither grow nor are they numbered anew."""
    capture(store, *range(7))
    with crash_at(point):
        store.export("archive")
    before = contents(archive)
    kill_store(store)
    again = reopen()
    capture(again, 7, 8)

    again.export("archive")

    assert delivered(archive, "m/all") == list(range(9))
    assert before.items() <= contents(archive).items()


def test_a_control_database_from_a_backup_reads_its_way_back_from_the_objects(
    store: Store, archive: ObjectPlace, reopen: Callable[[], Store], tmp_path: Path
) -> None:
    """Deliveries that the backup does not know are found, compared, and not made again in other pieces."""
    capture(store, *range(4))
    store.export("archive")
    with sqlite3.connect(tmp_path / "store" / "control.db") as live, sqlite3.connect(tmp_path / "backup.db") as copy:
        live.backup(copy)
    capture(store, *range(4, 9))
    store.export("archive")
    before = contents(archive)
    kill_store(store)
    for name in ("control.db", "control.db-wal", "control.db-shm"):
        (tmp_path / "store" / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup.db", tmp_path / "store" / "control.db")
    again = reopen()
    again.flush("m")
    capture(again, 9)

    report = again.export("archive")

    assert report.blocked is None
    assert delivered(archive, "m/all") == list(range(10))
    assert before.items() <= contents(archive).items()


def test_chunks_are_split_until_they_are_small_enough(store: Store, archive: ObjectPlace, where: Settings) -> None:
    store.remove_sink("archive")
    further = {**where, "url": f"{where['url']}/small"}
    store.add_sink("small", "blob", chunk_rows=100, chunk_bytes=400, **further)
    capture(store, *range(100))

    store.export("small")

    place = place_of({**KIND.defaults, **further})
    assert delivered(place, "m/all") == list(range(100))
    assert len(list(place.list("m/all"))) == 4  # 25 rows have 329 bytes


def test_many_partitions_go_to_a_bucket_side_by_side(store: Store, s3_server: S3Server) -> None:
    """Each on its own, as if it were alone."""
    where = s3_server.settings(f"s3://{s3_server.create_bucket()}/out")
    store.add_dataset("p", schema={"n": "long", "site": "string"}, partition_by=["site"])
    store.capture("p", [{"n": n, "site": f"s{n % 10}"} for n in range(200)])
    store.flush("p")
    store.add_sink("wide", "blob", chunk_rows=7, **where)

    report = store.export("wide")

    assert (report.blocked, report.errors, report.rows) == (None, {}, 200)
    place = place_of({**KIND.defaults, **where})
    for site in range(10):
        assert delivered(place, f"p/site=s{site}") == list(range(site, 200, 10))
    assert store.export("wide").rows == 0


def test_no_secret_is_shown_anywhere(
    store: Store, lake: MemoryLake, s3_server: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    from floodmark.cli.entry import run

    store.add_dataset("m", schema={"n": "long", "text": "string"})
    store.add_sink("archive", "blob", **s3_server.settings("s3://nosuchbucket/x"))
    capture(store, 1)
    report = store.export("archive")
    assert "no bucket 'nosuchbucket'" in (report.blocked or "")

    for arguments in (["sink", "list"], ["sink", "list", "--json"], ["status"], ["status", "--json"]):
        run(["-s", str(store.path), *arguments])
    said = capsys.readouterr()
    shown = said.out + said.err + repr(report) + str(store.status()) + repr(store.status())
    assert SECRET not in shown
    assert "AKIDEXAMPLE" not in shown


def test_a_rotated_credential_needs_no_restart(s3_server: S3Server, tmp_path: Path) -> None:
    where = s3_server.settings(f"s3://{s3_server.create_bucket()}/x")
    secret = tmp_path / "secret"
    secret.write_text("one\n")
    sink = sink_at({**where, "secret_access_key": f"file:{secret}"})
    first = sink.place
    secret.write_text("two\n")

    assert first != sink.place
    assert repr(first) == repr(sink.place)
    assert "two" not in repr(sink)


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "ftp://x/y"}, "'ftp://x/y' cannot be delivered to"),
        ({"url": "file://host/y"}, "cannot be delivered to"),
        ({"url": "file:relative"}, "cannot be delivered to"),
        ({"url": "s3://"}, "cannot be delivered to"),
        ({"url": "s3://bucket/../x"}, "cannot be delivered to"),
        ({"url": "s3://[x"}, "cannot be delivered to"),
        ({"url": "file:///x%00y"}, "cannot be delivered to"),
        ({"url": "file:///x\ny"}, "cannot be delivered to"),
        ({"url": "s3://bucket", "endpoint": "http://[x"}, "is not an address"),
        ({"url": 7}, "The url is a int"),
        ({"url": f"s3://key:{SECRET.replace('/', '')}@bucket/x"}, "must not contain credentials"),
        ({"url": f"az://c/x?sig={SECRET}"}, "must not contain credentials"),
        ({"url": "file:///x", "region": "eu-west-1"}, "region is not a setting of file:// places"),
        ({"url": "gs://bucket", "account_key": SECRET}, "account_key is not a setting of gs:// places"),
        ({"url": "s3://bucket", "endpoint": "nowhere"}, "is not an address"),
        (
            {"url": "s3://bucket", "endpoint": f"http://user:{SECRET.replace('/', '')}@host"},
            "must not contain credentials",
        ),
        ({"url": "s3://bucket", "region": ""}, "region is ''"),
        ({"url": "s3://bucket", "secret_access_key": f"two words {SECRET}"}, "secret_access_key is not one word"),
        ({"url": "s3://bucket", "secret_access_key": "env:"}, "names no environment variable"),
        ({"url": "gs://bucket", "service_account": SECRET}, "neither a reference nor a key"),
        ({"url": "file:///x", "format": "xml"}, "format 'xml' is unknown"),
        ({"url": "file:///x", "chunk_rows": 0}, "chunk_rows is 0"),
        ({"url": "file:///x", "concurrency": "4"}, "concurrency is '4'"),
        ({"url": "file:///x", "chunk_bytes": 2 << 30}, "chunk_bytes is"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_the_way_out(given: Settings, said: str) -> None:
    with pytest.raises(InvalidSetting, match=said) as refused:
        sink_at(given)
    assert refused.value.hint
    assert SECRET.replace("/", "") not in str(refused.value).replace("/", "")


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("gs://bucket//a//b/", "gs://bucket/a/b"),
        ("az://container/a b", "az://container/a b"),
    ],
)
def test_one_place_has_one_url(url: str, kept: str) -> None:
    assert sink_at({"url": url}).settings["url"] == kept


def test_every_setting_stands_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    section = page.partition("### `blob`")[2].partition("\n## ")[0]
    assert [name for name in ("url", *KIND.defaults) if f"`{name}`" not in section] == []
    assert f"`chunk_rows` | `{KIND.defaults['chunk_rows']}`" in section
    assert f"`chunk_bytes` | `{KIND.defaults['chunk_bytes']}`" in section


def test_every_credential_is_a_secret_setting() -> None:
    assert KIND.secret == SECRET_SETTINGS
    assert {"secret_access_key", "session_token", "service_account", "account_key", "sas_token"} <= KIND.secret
    assert not KIND.secret & set(KIND.pinned)


@pytest.mark.parametrize("source", ["env:FLOODMARK_TEST_KEY", "file:{path}", "text"])
def test_a_service_account_is_named_by_a_reference_or_given(tmp_path: Path, monkeypatch, source: str) -> None:
    key = json.dumps({"private_key": f"-----BEGIN KEY-----\n{SECRET}\n", "client_email": "x@y"}, indent=1)
    (tmp_path / "key.json").write_text(key)
    monkeypatch.setenv("FLOODMARK_TEST_KEY", key)
    given = key if source == "text" else source.format(path=tmp_path / "key.json")

    place = sink_at({"url": "gs://bucket/x", "service_account": given}).place

    assert SECRET not in repr(place)
    assert ("service_account_key", key) in place.credentials  # type: ignore[attr-defined]
    (tmp_path / "key.json").write_text("rubbish")
    monkeypatch.delenv("FLOODMARK_TEST_KEY")
    if source != "text":
        with pytest.raises(Permanent, match="service account's key"):
            _ = sink_at({"url": "gs://bucket/x", "service_account": given}).place
