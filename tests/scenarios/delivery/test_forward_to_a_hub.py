"""A store forwards to another store's hub over real connections: each row arrives once, with the values it has."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from floodmark import wire
from floodmark.control.schema import meta
from floodmark.hub.access import add_token
from floodmark.store import Store, init, open_store
from floodmark.testing import MemoryLake
from scenarios.delivery.hubs import RunningHub

EVERY_TYPE = {
    "yes": "boolean",
    "small": "int",
    "n": "long",
    "single": "float",
    "ratio": "double",
    "price": "decimal(20,4)",
    "name": "string",
    "blob": "binary",
    "day": "date",
    "at": "timestamp",
    "any": "json",
    "tags": "list<string>",
    "deep": "struct<a:long,b:list<struct<at:timestamp,blob:binary,price:decimal(9,2)>>>",
    "inner": "list<json>",
}

LONG_AGO = dt.datetime(1969, 1, 1, tzinfo=dt.UTC)


class Edge:
    """A store with a dataset `m` and its lake."""

    def __init__(self, path: Path, **dataset: Any) -> None:
        self.path = path
        self.lake = MemoryLake()
        self.store = init(path, lake=self.lake)
        self.store.add_dataset("m", **dataset)

    def rows(self) -> list[dict[str, Any]]:
        """Everything committed, by number."""
        self.store.flush("m")
        return [row for batch in self.store.read_since("m") for row in batch.table.to_pylist()]

    def numbers(self) -> list[int]:
        return [row["n"] for row in self.rows()]

    def commit(self, *numbers: int, **more: Any) -> None:
        self.store.capture("m", [{"n": n, **more} for n in numbers])
        self.store.flush("m")


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Edge]:
    made = Edge(tmp_path / "edge")
    yield made
    made.store.close()


@pytest.fixture
def central(tmp_path: Path) -> Iterator[Edge]:
    made = Edge(tmp_path / "central")
    yield made
    made.store.close()


@pytest.fixture
def hub(central: Edge) -> Iterator[RunningHub]:
    with RunningHub(central.store) as running:
        yield running


def forward(store: Store, hub: RunningHub, **settings: Any) -> None:
    store.add_sink("central", "forward", url=hub.url, **{"chunk_rows": 4, **settings})


def test_each_row_arrives_once_and_a_second_export_sends_nothing(edge: Edge, central: Edge, hub: RunningHub) -> None:
    forward(edge.store, hub)
    edge.commit(*range(10))
    report = edge.store.export("central")
    assert (report.rows, report.blocked, report.errors) == (10, None, {})
    assert edge.store.export("central").chunks == 0
    edge.commit(*range(10, 13))
    edge.store.export("central")
    assert central.numbers() == list(range(13))


@pytest.mark.parametrize("media", [(wire.LINES,), wire.MEDIA], ids=["lines", "columns"])
def test_every_value_is_the_same_at_the_other_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, media: tuple[str, ...]
) -> None:
    monkeypatch.setattr(wire, "MEDIA", media)
    rows: list[dict[str, Any]] = [
        {
            "yes": True,
            "small": -(2**31),
            "n": 2**63 - 1,
            "single": 0.5,
            "ratio": float("-inf"),
            "price": Decimal("1234567890123456.7890"),
            "name": 'ü "quoted"\n\u2028 \x00',
            "blob": b"\x00\xff",
            "day": dt.date(1, 1, 1),
            "at": dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
            "any": {"k": [1, None, "x", {"é": 1.5}]},
            "tags": ["a", None, ""],
            "inner": [{"k": 1}, "text", None],
            "deep": {
                "a": 1,
                "b": [{"at": dt.datetime(1969, 1, 1, tzinfo=dt.UTC), "blob": b"x", "price": Decimal("1.5")}],
            },
        },
        {"n": 2},
        {"n": 3, "ratio": 1e-320, "any": "text", "tags": [], "deep": {"a": None, "b": None}},
    ]
    sender = Edge(tmp_path / "sender", schema=EVERY_TYPE)
    taker = Edge(tmp_path / "taker")
    with RunningHub(taker.store) as hub:
        forward(sender.store, hub)
        sender.store.capture("m", rows)
        sender.store.flush("m")
        assert sender.store.export("central").rows == 3
        assert taker.rows() == sender.rows()
        kinds = {column.name: str(column.type) for column in taker.store.datasets()[0].schema.columns}
        assert kinds == EVERY_TYPE
    for one in (sender, taker):
        one.store.close()


def test_a_sink_that_lost_its_records_asks_the_hub_and_goes_on(edge: Edge, central: Edge, hub: RunningHub) -> None:
    forward(edge.store, hub)
    edge.commit(*range(10))
    edge.store.export("central")
    edge.store.remove_sink("central")
    forward(edge.store, hub)
    edge.commit(10, 11)
    assert edge.store.export("central").rows == 2
    assert central.numbers() == list(range(12))


def test_a_store_whose_history_parted_is_refused_and_another_origin_is_the_way_out(
    edge: Edge, central: Edge, hub: RunningHub, tmp_path: Path
) -> None:
    forward(edge.store, hub)
    edge.commit(*range(5))
    edge.store.export("central")

    # Another life of the same store: the same id, other rows under the same numbers.
    impostor = Edge(tmp_path / "impostor")
    impostor.store.engine.database.transact(
        lambda c: c.execute(update(meta).where(meta.c.name == "store_id").values(value=edge.store.store_id))
    )
    impostor.store.close()
    settings = tmp_path / "impostor" / "floodmark.toml"
    settings.write_text(settings.read_text().replace(impostor.store.store_id, edge.store.store_id))
    impostor.store = open_store(tmp_path / "impostor", lake=impostor.lake)
    forward(impostor.store, hub)
    impostor.commit(*range(100, 105))

    blocked = impostor.store.export("central").blocked
    assert blocked is not None
    assert "origin" in blocked
    assert central.numbers() == list(range(5))

    impostor.store.remove_sink("central")
    forward(impostor.store, hub, origin="second-life")
    assert impostor.store.export("central").rows == 5
    assert central.numbers() == [*range(5), *range(100, 105)]
    impostor.store.close()


def test_another_hub_at_the_same_address_gets_nothing_until_the_sink_is_added_again(
    edge: Edge, central: Edge, tmp_path: Path
) -> None:
    """D8."""
    with RunningHub(central.store) as hub:
        forward(edge.store, hub)
        edge.commit(*range(5))
        edge.store.export("central")
    emptied = Edge(tmp_path / "emptied")
    with RunningHub(emptied.store, port=hub.port) as again:
        edge.commit(5, 6)
        report = edge.store.export("central")
        assert "is not the hub of this sink" in (report.blocked or "")
        assert emptied.numbers() == []
        edge.store.remove_sink("central")
        forward(edge.store, again)
        assert edge.store.export("central").rows == 7
        assert emptied.numbers() == list(range(7))
    emptied.store.close()


def test_a_row_that_does_not_fit_there_stays_behind_and_holds_nobody_up(edge: Edge, tmp_path: Path) -> None:
    strict = Edge(tmp_path / "strict", schema={"n": "long", "size": "long"})
    with RunningHub(strict.store) as hub:
        forward(edge.store, hub)
        edge.store.capture("m", [{"n": n, "size": "huge" if n == 4 else None} for n in range(8)])
        edge.store.flush("m")
        report = edge.store.export("central")
        assert (report.rows, report.quarantined, report.blocked) == (7, 1, None)
        # What follows is taken by the hub only if both still count alike: the row that was given up is in the totals.
        edge.commit(8, 9)
        assert edge.store.export("central").blocked is None
        assert strict.numbers() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        replayed = edge.store.replay("central")
        assert (replayed.rows, replayed.refused) == (0, 1)
    strict.store.close()


def test_rows_never_go_round(edge: Edge, central: Edge, hub: RunningHub) -> None:
    with RunningHub(edge.store) as back:
        forward(edge.store, hub)
        central.store.add_sink("back", "forward", url=back.url)
        edge.commit(1, 2, 3)
        edge.store.export("central")
        central.store.flush("m")
        blocked = central.store.export("back").blocked
        assert "have passed through" in (blocked or "")
        assert edge.numbers() == [1, 2, 3]


def test_under_another_origin_rows_never_go_round_either(edge: Edge, central: Edge, hub: RunningHub) -> None:
    with RunningHub(edge.store) as back:
        forward(edge.store, hub, origin="other-name")
        central.store.add_sink("back", "forward", url=back.url)
        edge.commit(1, 2, 3)
        edge.store.export("central")
        central.store.flush("m")
        assert "have passed through" in (central.store.export("back").blocked or "")
        assert edge.numbers() == [1, 2, 3]


def test_a_token_is_needed_bound_and_rotated_without_a_restart(
    edge: Edge, central: Edge, hub: RunningHub, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    _, foreign = add_token(central.store, "foreign", origins=["another-store"], any_dataset=True)
    _, good = add_token(central.store, "good", origins=[edge.store.store_id], datasets=["m"])
    file.write_text("unknown")
    forward(edge.store, hub, token=f"file:{file}")
    edge.commit(1, 2, 3)

    assert "401" in (edge.store.export("central").blocked or "")
    file.write_text(foreign)
    refused = edge.store.export("central").blocked or ""
    assert "403" in refused
    assert foreign not in refused
    assert central.numbers() == []
    file.write_text(good)
    report = edge.store.export("central")
    assert (report.blocked, report.rows) == (None, 3)
    assert central.numbers() == [1, 2, 3]
