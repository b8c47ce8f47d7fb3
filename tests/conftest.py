"""Fixtures for every tier. One JVM serves the whole run; each test has a fresh store directory."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings

import seeds
from floodmark import faults
from floodmark.control.database import Database, migrate
from floodmark.lake.catalog import Catalog
from floodmark.store import Store, init, open_store
from floodmark.testing import ManualClock, MemoryLake
from s3 import s3_server  # noqa: F401 - a fixture
from tables import lay_out

ROOT = Path(__file__).parent.parent
# How long an example takes is the machine's affair, not the product's. What failed here once is not remembered: every
# machine tries the same examples.
settings.register_profile("floodmark", deadline=None, database=None, print_blob=True)
settings.load_profile("floodmark")
os.environ.setdefault("FLOODMARK_JARS", str(ROOT / ".cache" / "jars"))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis draws from the run's one seed, unless its own option names another."""
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(seeds.SEED)


def pytest_report_header() -> str:
    return seeds.header()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever leaves out what is marked `spark` starts no JVM."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


def pytest_collection_finish() -> None:
    gc.freeze()  # what is loaded stays: looking through it again and again would cost a tenth of all the time
    gc.set_threshold(50_000, 50, 50)
    pa.set_cpu_count(1)  # tables of a few rows: waking threads for them costs more than the work


@pytest.fixture(scope="session", autouse=True)
def _new_stores_copy_their_tables() -> Iterator[None]:
    def copied(database: Database, *, create: bool = True) -> None:
        if create:
            lay_out(database)
        migrate(database, create=create)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("floodmark.engine.migrate", copied)
        yield


@pytest.fixture(autouse=True)
def _no_fault_outlives_its_test() -> Iterator[None]:
    yield
    faults.disarm_all()


@pytest.fixture(autouse=True)
def _no_catalog_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Spark sends all settings of its session with every scan. Those of hundreds of catalogs cost more than it."""
    if request.node.get_closest_marker("spark") is None:
        yield
        return
    attached: list[tuple[Any, str]] = []
    attach = Catalog.attach

    def noted(self: Catalog, spark: Any) -> None:
        prefix = f"spark.sql.catalog.{self.name}"
        attached.extend((spark, f"{prefix}.{key}") for key in (*self.spark_settings, "cache-enabled"))
        attached.append((spark, prefix))
        attach(self, spark)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Catalog, "attach", noted)
        yield
    for session, key in attached:
        session.conf.unset(key)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def lake() -> MemoryLake:
    return MemoryLake()


@pytest.fixture(scope="session")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `init` makes, to be copied."""
    place = tmp_path_factory.mktemp("new") / "store"
    init(place, lake=MemoryLake()).close()
    return place


@pytest.fixture
def store(new_store: Path, tmp_path: Path, lake: MemoryLake, clock: ManualClock) -> Iterator[Store]:
    """An embedded store on the memory lake."""
    shutil.copytree(new_store, tmp_path / "store")
    with open_store(tmp_path / "store", lake=lake, clock=clock) as made:
        yield made


@pytest.fixture
def reopen(tmp_path: Path, lake: MemoryLake, clock: ManualClock) -> Iterator[Callable[[], Store]]:
    """Opens the `store` fixture's directory again, as another process would."""
    opened: list[Store] = []

    def again() -> Store:
        opened.append(open_store(tmp_path / "store", lake=lake, clock=clock))
        return opened[-1]

    yield again
    for item in opened:
        item.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """The one Spark session of the run."""
    from floodmark.lake.session import start_session

    session = start_session(
        master="local[2]",
        needs=["s3", "postgresql"],
        settings={"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"},
    )
    yield session
    session.stop()
