"""A sink that would deliver nothing, to another's place or into the store itself is refused when it is added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from floodmark.config import CatalogSettings
from floodmark.errors import InvalidSetting
from floodmark.store import Store


@pytest.fixture
def shop(store: Store) -> Store:
    store.add_dataset("orders")
    store.add_dataset("visits", partition_by=["site"])
    return store


# ── what it takes ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        ({"datasets": ["nope"]}, "There is no dataset 'nope'"),
        ({"datasets": ["orders", "order"]}, "There is no dataset 'order'"),
        ({"datasets": ["orders"], "partitions": {"site": ["a"]}}, "'orders' is not partitioned by 'site'"),
        ({"datasets": ["visits"], "partitions": {"sites": ["a"]}}, "'visits' is not partitioned by 'sites'"),
        ({"partitions": {"sites": ["a"]}}, "No dataset is partitioned by 'sites'"),
        ({"datasets": []}, "datasets is empty"),
    ],
)
def test_a_scope_that_names_what_is_not_there_is_refused(
    shop: Store, tmp_path: Path, scope: dict[str, Any], said: str
) -> None:
    url = (tmp_path / "out").as_uri()
    with pytest.raises(InvalidSetting, match=said) as refused:
        shop.add_sink("out", "blob", url=url, **scope)
    assert refused.value.hint
    assert shop.sinks() == []
    shop.add_sink("out", "blob", url=url)
    with pytest.raises(InvalidSetting, match=said):
        shop.change_sink("out", **scope)
    assert shop.sinks()[0].settings["datasets"] is None


def test_what_is_added_later_may_be_named_before_and_status_says_so_until_it_is_there(
    shop: Store, tmp_path: Path
) -> None:
    shop.add_sink("out", "blob", url=(tmp_path / "out").as_uri(), datasets=["refunds"], later=True)
    assert shop.status().sinks[0].warnings == ("There is no dataset 'refunds'.",)
    shop.add_dataset("refunds")
    shop.capture("refunds", [{"n": 1}])
    shop.flush()
    assert shop.status().sinks[0].warnings == ()
    assert shop.export("out").rows == 1


def test_a_scope_of_which_nothing_is_there_is_told_by_status_and_audit(shop: Store, tmp_path: Path) -> None:
    shop.add_sink("out", "blob", url=(tmp_path / "out").as_uri(), datasets=["visits"], partitions={"site": ["b", "c"]})
    assert shop.status().sinks[0].warnings == ()
    shop.capture("visits", [{"n": 1, "site": "a"}])
    shop.flush()

    warning = "No existing partition has site=b, site=c."
    assert shop.status().sinks[0].warnings == (warning,)
    report = shop.audit("out")
    assert [(item.kind, item.what, item.wrong) for item in report.findings] == [("scope-empty", warning, False)]
    assert report.sound


# ── where it delivers to ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"kind": "blob", "url": "s3://bucket/a"}, {"kind": "blob", "url": "s3://bucket/a/"}),
        ({"kind": "blob", "url": "s3://bucket/a"}, {"kind": "blob", "url": "s3://bucket/a/b"}),
        ({"kind": "blob", "url": "s3://bucket/a/b"}, {"kind": "blob", "url": "s3://bucket"}),
        ({"kind": "blob", "url": "file://{}/out"}, {"kind": "blob", "url": "file://{}/out"}),
        ({"kind": "blob", "url": "file://{}/out"}, {"kind": "blob", "url": "file://{}/other/../out/deep"}),
        ({"kind": "blob", "url": "file://{}/out"}, {"kind": "blob", "url": "file://{}/link"}),
        ({"kind": "table", "table": "c.n"}, {"kind": "table", "table": "c.n"}),
        ({"kind": "table", "table": "c.n"}, {"kind": "table", "table": "c.n.orders", "datasets": ["visits"]}),
        (
            {"kind": "table", "table": "c.n.t", "datasets": ["orders"]},
            {"kind": "table", "table": "c.n.t", "datasets": ["visits"]},
        ),
        ({"kind": "forward", "url": "http://hub"}, {"kind": "forward", "url": "http://hub/"}),
        ({"kind": "forward", "url": "http://hub"}, {"kind": "forward", "url": "http://hub", "datasets": ["orders"]}),
    ],
)
def test_two_sinks_do_not_share_a_place(shop: Store, tmp_path: Path, first: Any, second: Any) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    one, two = (
        {key: value.format(tmp_path) if key == "url" else value for key, value in given.items()}
        for given in (first, second)
    )
    shop.add_sink("one", **one)
    with pytest.raises(InvalidSetting, match="Sink 'one' already delivers to this place"):
        shop.add_sink("two", **two)
    assert [sink.name for sink in shop.sinks()] == ["one"]
    shop.remove_sink("one")
    shop.add_sink("two", **two)


def test_sinks_whose_places_only_look_alike_are_taken(shop: Store, tmp_path: Path) -> None:
    for name, kind, settings in [
        ("a", "blob", {"url": "s3://bucket/a"}),
        ("aa", "blob", {"url": "s3://bucket/aa"}),
        ("elsewhere", "blob", {"url": "s3://bucket/a", "endpoint": "http://minio:9000"}),
        ("gs", "blob", {"url": "gs://bucket/a"}),
        ("files", "blob", {"url": (tmp_path / "out").as_uri()}),
        ("beside", "blob", {"url": (tmp_path / "outer").as_uri()}),
        ("orders", "forward", {"url": "http://hub", "datasets": ["orders"]}),
        ("site_a", "forward", {"url": "http://hub", "datasets": ["visits"], "partitions": {"site": ["a"]}}),
        ("site_b", "forward", {"url": "http://hub", "datasets": ["visits"], "partitions": {"site": ["b"]}}),
        ("twin", "forward", {"url": "http://hub", "datasets": ["orders"], "origin": "another"}),
        ("table", "table", {"table": "c.n", "datasets": ["orders"]}),
        ("tables", "table", {"table": "c.n", "datasets": ["visits"]}),
    ]:
        shop.add_sink(name, kind, **settings)


def test_a_change_does_not_bring_two_sinks_to_one_place(shop: Store, tmp_path: Path) -> None:
    shop.add_sink("one", "blob", url=(tmp_path / "one").as_uri())
    shop.add_sink("two", "blob", url=(tmp_path / "two").as_uri())
    with pytest.raises(InvalidSetting, match="Sink 'one' already delivers to this place"):
        shop.change_sink("two", url=(tmp_path / "one" / "deeper").as_uri())
    shop.change_sink("two", url=(tmp_path / "two" / "deeper").as_uri())


def test_nothing_is_delivered_into_the_store_itself(shop: Store, tmp_path: Path) -> None:
    shop.settings.catalogs["own"] = CatalogSettings("sql", f"sqlite:///{shop.path}/lake/catalog.db", "s3://x/y")
    shop.settings.catalogs["inner"] = CatalogSettings("sql", "sqlite:////srv/c.db", f"file://{shop.path}/lake/w")
    for kind, settings in [
        ("blob", {"url": shop.path.as_uri()}),
        ("blob", {"url": (shop.path / "lake" / "out").as_uri()}),
        ("blob", {"url": f"file://{shop.path}/spool/../quarantine"}),
        ("table", {"table": f"floodmark_{shop.store_id.replace('-', '')[:12]}.datasets"}),
        ("table", {"table": "own.datasets"}),
        ("table", {"table": "inner.n"}),
    ]:
        with pytest.raises(InvalidSetting, match="inside the store"):
            shop.add_sink("out", kind, **settings)
    shop.add_sink("out", "blob", url=(tmp_path / "out").as_uri())
    with pytest.raises(InvalidSetting, match="inside the store"):
        shop.change_sink("out", url=(shop.path / "out").as_uri())


def test_status_tells_when_the_schedule_of_a_sink_is_due(shop: Store, tmp_path: Path) -> None:
    shop.add_sink("daily", "blob", url=(tmp_path / "daily").as_uri(), cron="30 4 * * *")
    shop.add_sink("often", "blob", url=(tmp_path / "often").as_uri(), every="5m")
    told = {item.name: item.next_attempt for item in shop.status().sinks}
    assert (told["daily"].hour, told["daily"].minute) == (4, 30)
    assert told["often"] is None, "due at once"


def test_a_change_takes_the_old_reason_away(shop: Store, tmp_path: Path) -> None:
    shop.capture("orders", [{"n": 1}])
    shop.flush()
    (tmp_path / "file").write_text("in the way")
    shop.add_sink("out", "blob", url=(tmp_path / "file").as_uri())
    assert shop.export("out").blocked
    assert shop.sinks()[0].reason
    shop.change_sink("out", url=(tmp_path / "out").as_uri())
    assert (shop.sinks()[0].state, shop.sinks()[0].reason) == ("active", None)
