"""Stores that forward to each other in a circle: no row is stored twice, however long the circle and whoever lies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from floodmark.cli.provenance import forget_provenance, list_provenance
from floodmark.hub.access import add_token
from floodmark.store import Store, init
from floodmark.testing import MemoryLake
from scenarios.delivery.hubs import RunningHub
from sending import Chunk, Sender

DATASET = "events"


class Ring:
    """Stores with hubs, each by its letter."""

    def __init__(self, root: Path, names: str) -> None:
        self._stack = contextlib.ExitStack()
        self.stores: dict[str, Store] = {}
        self.hubs: dict[str, RunningHub] = {}
        for name in names:
            self.stores[name] = self._stack.enter_context(init(root / name, lake=MemoryLake()))
            self.stores[name].add_dataset(DATASET)
            self.hubs[name] = self._stack.enter_context(RunningHub(self.stores[name]))

    def close(self) -> None:
        self._stack.close()

    def forward(self, one: str, other: str, **settings: object) -> None:
        self.stores[one].add_sink(f"to_{other}", "forward", url=self.hubs[other].url, **settings)

    def tick(self) -> dict[str, str]:
        """Every store commits and delivers once; the sinks that are blocked, and why."""
        blocked = {}
        for name, store in self.stores.items():
            store.flush(DATASET)
            for sink in store.sinks():
                report = store.export(sink.name)
                if report.blocked:
                    blocked[f"{name} {sink.name}"] = report.blocked
        return blocked

    def ids(self, name: str) -> list[int]:
        self.stores[name].flush(DATASET)
        return sorted(row["id"] for batch in self.stores[name].read_since(DATASET) for row in batch.table.to_pylist())

    def send(self, name: str, chunk: Chunk, token: str | None = None) -> httpx.Response:
        return httpx.post(self.hubs[name].url + chunk.path, content=chunk.body, headers=chunk.headers(token))


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    made = Ring(tmp_path, "abc")
    yield made
    made.close()


def many_edges(count: int) -> list[Sender]:
    # Their names come before any store's id: those of the circle itself would be the ones that are left out.
    edges = [Sender(origin=f"#{index:03}") for index in range(count)]
    for index, edge in enumerate(edges):
        edge.add(1, first=1000 + index)
    return edges


def all_of(*senders: Sender) -> list[int]:
    return sorted(seq for sender in senders for seq in sender.rows)


@pytest.mark.parametrize("closing", ["a", "b"], ids=["back to the first", "between the second and the third"])
def test_a_circle_of_three_stores_behind_a_hundred_edges_stores_every_row_once(ring: Ring, closing: str) -> None:
    """H4. A path of which some stores are left out does not tell that rows come back."""
    edges = many_edges(100)
    for edge in edges:
        (seq,) = edge.rows
        assert ring.send("a", edge.chunk(seq - 1, seq)).status_code == 200
    ring.forward("a", "b")
    ring.forward("b", "c")
    assert ring.tick() == {}
    ring.forward("c", closing)

    for _ in range(4):
        blocked = ring.tick()

    assert list(blocked) == [f"c to_{closing}"]
    assert "have passed through" in blocked[f"c to_{closing}"]
    for name in "abc":
        assert ring.ids(name) == all_of(*edges)
    ring.stores["a"].capture(DATASET, [{"id": 1}])
    ring.tick()
    assert ring.ids("c") == [1, *all_of(*edges)], "only the sink that closes the circle is stopped"


# ── senders that do not tell the truth ───────────────────────────────────────────────────────────────────────────────


def liar(*named: str, first: int = 500, **changes: object) -> Chunk:
    """A chunk whose row, if it has one, is said to have passed through stores where it never was."""
    edge = Sender(origin="liar")
    edge.add(1, first=first)
    return edge.chunk(first - 1, first, path=(*named, "liar"), **changes)


def test_a_chunk_without_rows_stops_no_forwarding(ring: Ring) -> None:
    """H5."""
    ring.forward("a", "b")
    edge = Sender(origin="liar")
    upstream = ring.stores["b"].store_id
    assert ring.send("c", edge.chunk(0, 9, path=(upstream, "liar"))).status_code == 200
    assert ring.send("a", edge.chunk(0, 9, path=(upstream, "liar"))).status_code == 200
    assert list_provenance(ring.stores["a"]) == []
    assert list_provenance(ring.stores["c"]) == []
    ring.stores["a"].capture(DATASET, [{"id": 1}])
    assert ring.tick() == {}
    assert ring.ids("b") == [1]


def test_an_edge_speaks_only_of_stores_that_its_token_is_bound_to(ring: Ring) -> None:
    """H5. Else any edge could have the hub's own forwarding refused, by naming the hub that it forwards to."""
    a, c = ring.stores["a"], ring.stores["c"]
    _, bound = add_token(a, "edge", origins=["liar"], datasets=[DATASET])
    _, relay = add_token(a, "relay", origins=["liar"], datasets=[DATASET], relay=True)
    assert ring.send("a", liar(c.store_id), bound).status_code == 403
    assert list_provenance(a) == []
    assert ring.send("a", liar(), bound).status_code == 200
    assert ring.send("b", liar(c.store_id)).status_code == 200, "without tokens a hub is open"
    relayed = Sender(origin="liar", partition="another")
    relayed.add(1)
    assert ring.send("a", relayed.chunk(0, 1, path=(c.store_id, "liar")), relay).status_code == 200
    assert {item.store for item in list_provenance(a)} == {"liar", c.store_id}


@pytest.mark.parametrize("named", ["b", "c"], ids=["the next hub", "the one behind it"])
def test_what_was_named_wrongly_is_taken_back_by_hand_and_the_forwarding_goes_on(ring: Ring, named: str) -> None:
    """H5. A relay named a hub where its row never was; A forwards to B, and B to C."""
    ring.forward("a", "b")
    ring.forward("b", "c")
    lie = ring.stores[named].store_id
    assert ring.send("a", liar(lie)).status_code == 200
    for _ in range(2):
        blocked = ring.tick()
    stopped, source = ("a to_b", "a") if named == "b" else ("b to_c", "b")
    assert list(blocked) == [stopped]
    assert "`floodmark provenance list`" in blocked[stopped]
    assert [(item.origin, item.store) for item in list_provenance(ring.stores["a"], passed=lie)] == [("liar", lie)]

    forget_provenance(ring.stores["a"], "liar", passed=lie)
    if source == "b":
        forget_provenance(ring.stores["b"], ring.stores["a"].store_id, passed=lie)

    for _ in range(3):
        blocked = ring.tick()
    assert blocked == {}
    assert ring.ids("c") == [500]
