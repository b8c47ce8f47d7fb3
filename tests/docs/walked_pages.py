"""What each page takes for granted, what stands in for the names in it, and what of it is not run and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Page:
    given: str = ""
    """What a reader has before the page begins, as commands; `---` separates them where bash must have ended one."""
    spark: bool = True
    """Whether a command or a block of it starts Spark in this process."""
    store: str = "shop"
    """The store whose floodmark.toml the page's settings belong to."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """A name on the page → what the test has in its place. `{directory}`, `{port}`, `{process}` are filled in."""
    before: Mapping[str, str] = field(default_factory=dict)
    """A command of the page → what happens before it; `stop` ends what runs in the background."""
    fails: Mapping[str, int] = field(default_factory=dict)
    """A command that the page shows failing → its exit code."""
    ready: Mapping[str, str] = field(default_factory=dict)
    """A command that runs until it is stopped → what it prints last before the page continues."""
    not_run: Mapping[str, str] = field(default_factory=dict)
    """A command, or the first line of a block → why it is not run."""
    needs: tuple[str, ...] = ()
    """Fixtures: servers that the page's commands reach."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def words(self, services: Mapping[str, Any]) -> dict[str, str]:
        found = {}
        if "s3_server" in services:
            found["s3"] = services["s3_server"].endpoint
        if "postgres_server" in services:
            found["postgres"] = services["postgres_server"].create_schema()
        return found


SHOP = """\
floodmark init shop
export FLOODMARK_STORE=$PWD/shop
floodmark dataset add orders --identity order_id --event-time placed_at --column total:long
cat > orders.jsonl <<'END'
{{"order_id": "a-1", "placed_at": "2026-03-02T08:00:00Z", "total": 40, "city": "Ghent"}}
{{"order_id": "a-2", "placed_at": "2026-03-02T08:05:00Z", "total": 12, "city": "Bruges"}}
END
"""
CAPTURED = f"{SHOP}floodmark capture orders orders.jsonl\n"
COMMITTED = f"{CAPTURED}floodmark flush\n"
EVENTS = """\
floodmark dataset add events --identity id --event-time at
printf '{{"id": %s, "at": "2026-01-0%sT08:00:00Z"}}\\n' 1 1 2 2 3 3 | floodmark capture events
floodmark flush
"""
BAD_ROW = 'echo \'{{"order_id": "a-3", "total": 12.5}}\' | floodmark capture orders || true\n'
AN_ENTRY = "$(floodmark quarantine list --json | python -c 'import json, sys; print(json.load(sys.stdin)[0][\"id\"])')"

A_DAMAGED_SEGMENT = "$(floodmark fsck | grep -om1 'give-up [0-9]*' | grep -o '[0-9]*')"
QUICKLY = "sed -i 's/# flush_seconds = 30.0/flush_seconds = 0.5/' {store}/floodmark.toml"
RUN = "floodmark run          # flushes and delivers continuously, until you stop it"
WITH_KEYS = """\
s3://my-bucket/archive --set region=eu-west-1 \\
    --set access_key_id=env:ARCHIVE_KEY --set secret_access_key=file:/run/secrets/archive"""
DOCTOR = "says what this machine lacks; run by tests/scenarios/cli/test_doctor_command.py"
PICTURE = "a picture"
SAMPLE = "names of objects or lines of a log, to explain them"

PAGES: dict[str, Page] = {
    "README.md": Page(
        before={RUN: QUICKLY.replace("{store}", "gauges")},
        ready={RUN: "sink archive: 1 row"},
        not_run={
            f"capture ──┐{' ' * 48}┌── files, S3, GCS, Azure (Parquet, JSON lines)": PICTURE,
            "make demo     # the complete pipeline on a scratch store, with every count checked": (
                "run by tests/scenarios/cli/test_on_spark.py"
            ),
            "make test     # linters, types and all tests": "these are the tests",
        },
    ),
    "docs/index.md": Page(spark=False),
    "docs/tutorial.md": Page(
        instead={"show ID": f"show {AN_ENTRY}"},
        fails={"floodmark capture orders orders.jsonl": 1},
        not_run={
            "make setup": "the tests run after it",
            "export PATH=$PWD/.venv/bin:$PATH FLOODMARK_JARS=$PWD/.cache/jars": "the shell of the tests has both",
        },
    ),
    "docs/coming-from/dlt.md": Page(),
    "docs/coming-from/kafka-connect.md": Page(
        spark=False,
        given="""\
floodmark init shop
floodmark -s shop dataset add orders --identity order_id
---
start floodmark -s shop hub --port {port}
""",
        instead={":8080": ":{port}"},
    ),
    "docs/coming-from/structured-streaming.md": Page(),
    "docs/coming-from/vector.md": Page(spark=False, not_run={"transforms:": "settings of Vector"}),
    "docs/how-to/back-up-a-store.md": Page(given=SHOP),
    "docs/how-to/backfill.md": Page(
        given=SHOP
        + """\
floodmark dataset add messages --identity id --event-time at
mkdir history
echo '{{"id": 1, "at": "2025-12-31T08:00:00Z", "text": "old"}}' > history/2025.jsonl
printf 'id,at,text\\n2,2026-01-01T08:00:00Z,new\\n3,2026-01-02,newer\\n' > history/2026.csv
""",
        instead={"/srv/history": "{directory}/history"},
    ),
    "docs/how-to/capture.md": Page(
        given=SHOP
        + """\
gzip -k orders.jsonl
python -c '
import pyarrow as pa, pyarrow.parquet as pq
pq.write_table(pa.table({{"order_id": ["h-1", "h-2"], "total": [1, 2]}}), "history.parquet")'
""",
    ),
    "docs/how-to/change-a-running-store.md": Page(
        given="""\
floodmark init shop
export FLOODMARK_STORE=$PWD/shop PYTHONPATH=$PWD
sed -i 's/# allow = \\[\\]/allow = ["totals", "identities"]/' shop/floodmark.toml
echo 'def add_up(batch): pass' > totals.py
echo 'def settle(rows): return rows' > identities.py
floodmark dataset add readings --identity gauge
echo '{{"gauge": "weir", "level": 0.88}}' | floodmark capture readings
floodmark flush
floodmark read readings --cursor-file yesterday.cursor
floodmark sink add archive blob --url file://$PWD/archive
floodmark sink add totals projection --function totals:add_up
floodmark export
""",
        before={"floodmark dataset remove readings --yes": "floodmark export"},
    ),
    "docs/how-to/check-a-store.md": Page(
        given=COMMITTED
        + """\
floodmark sink add archive blob --url file://$PWD/archive
floodmark export
""",
        instead={"A-17": "a-2", "4711": A_DAMAGED_SEGMENT},
        before={
            "floodmark fsck --repair --give-up 4711 --yes": """\
python -c '
import pyarrow as pa, pyarrow.parquet as pq
pq.write_table(pa.table({{"order_id": ["h-1", "h-2"], "total": [1, 2]}}), "history.parquet")'
floodmark capture orders history.parquet
rm shop/spool/orders/segments/*.parquet
""",
            "floodmark fsck --rebuild-records": "rm shop/control.db*",
        },
        not_run={
            "floodmark doctor               # also where there is no store yet": DOCTOR,
            "floodmark doctor --no-spark    # without starting Spark": DOCTOR,
        },
    ),
    "docs/how-to/deliver-to-a-table.md": Page(
        given=COMMITTED,
        instead={
            'type = "rest"\nuri = "https://catalog.example"\nwarehouse = "analytics"\ntoken = "env:CENTRAL_TOKEN"\n': (
                'type = "sql"\nuri = "sqlite:///{directory}/catalog.db"\nwarehouse = "{directory}/warehouse"\n'
            )
        },
    ),
    "docs/how-to/deliver-to-files-and-object-stores.md": Page(
        given=COMMITTED + "curl -sX PUT {s3}/my-bucket && curl -sX PUT {s3}/archive\n",
        needs=("s3_server",),
        instead={
            "/srv/archive": "{directory}/archive",
            "--set region=eu-west-1": "--set region=eu-west-1 --set endpoint={s3}",
            "http://minio:9000": "{s3}",
        },
        environment={"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "secret"},
        before={
            # The page shows one way after the other to have this sink.
            f"floodmark sink add archive blob --url {place}": "floodmark sink remove archive"
            for place in (
                "s3://my-bucket/archive --set region=eu-west-1",
                WITH_KEYS,
                "s3://archive --set endpoint=http://minio:9000 --set region=us-east-1",
                "gs://my-bucket/archive --set service_account=file:/run/secrets/key.json",
                "az://container/archive --set account=mystorage --set account_key=env:AZURE_KEY",
            )
        },
        not_run={"archive/messages/source=github/0-100000.parquet": SAMPLE},
    ),
    "docs/how-to/event-log.md": Page(given=SHOP),
    "docs/how-to/forward-to-a-hub.md": Page(
        given=COMMITTED
        + """\
floodmark init central
floodmark -s central dataset add orders --identity order_id --event-time placed_at
origin=$(grep store_id shop/floodmark.toml | cut -d'"' -f2)
export HUB_TOKEN=$(floodmark -s central token add edge-7 --origins $origin --datasets orders)
---
start floodmark -s central hub --port {port}
""",
        instead={"https://hub.example": "http://127.0.0.1:{port}"},
        not_run={
            "floodmark -s central provenance forget EDGE-ID --passed HUB-ID": (
                "needs a sender that has lied; run by tests/scenarios/cli/test_tokens.py"
            )
        },
    ),
    "docs/how-to/keep-tables-small.md": Page(given=SHOP + EVENTS),
    "docs/how-to/monitor.md": Page(
        spark=False,
        given=SHOP,
        instead={":8765": ":{port}"},
        before={"floodmark -s shop run --listen 0.0.0.0:8765": "stop"},
        ready={
            "floodmark -s shop run --listen 127.0.0.1:8765": "Dashboard, metrics and health on",
            "floodmark -s shop run --listen 0.0.0.0:8765": "Dashboard, metrics and health on",
        },
        not_run={"scrape_configs:": "settings of Prometheus"},
    ),
    "docs/how-to/projections.md": Page(given=COMMITTED),
    "docs/how-to/quarantine.md": Page(
        given=SHOP + BAD_ROW,
        before={
            "floodmark quarantine replay --all --dataset orders": "floodmark dataset change orders --type total=double",
            "floodmark quarantine discard 3f2a81": BAD_ROW.replace("12.5", '"much"'),
        },
        instead={"3f2a81": AN_ENTRY},
    ),
    "docs/how-to/read-pending-rows.md": Page(
        given=COMMITTED + 'echo \'{{"order_id": "a-3", "total": 5}}\' | floodmark capture orders\n'
    ),
    "docs/how-to/read-with-cursors.md": Page(given=COMMITTED),
    "docs/how-to/rebuild-a-dataset.md": Page(
        given=SHOP + EVENTS, instead={"/mnt/larger-disk": "{directory}/larger-disk"}
    ),
    "docs/how-to/remove-rows.md": Page(
        given=SHOP
        + EVENTS
        + """\
floodmark sink add archive blob --url file://$PWD/archive
floodmark dataset add messages --identity id
echo '{{"id": 1, "author": "someone@example.org"}}' | floodmark capture messages && floodmark flush
""",
    ),
    "docs/how-to/run-a-hub.md": Page(
        spark=False,
        given="openssl req -x509 -newkey rsa:2048 -nodes -keyout hub.key -out hub.pem -days 1 -subj /CN=localhost "
        "-addext subjectAltName=DNS:localhost\n",
        store="central",
        instead={":8080": ":{port}", "central hub": "central hub --port {port}"},
        ready={
            "floodmark -s central hub": "Hub on",
            "floodmark -s central hub --host 0.0.0.0 --tls-cert hub.pem --tls-key hub.key": "Hub on",
        },
        before={"floodmark -s central hub --host 0.0.0.0 --tls-cert hub.pem --tls-key hub.key": "stop"},
    ),
    "docs/how-to/run-as-a-service.md": Page(
        spark=False,
        not_run={
            "python3 -m venv /opt/floodmark": "tests/acceptance/test_package.py installs the wheel without network",
            "uvx floodmark demo": "needs a package index",
            "useradd --system --home-dir /var/lib/floodmark floodmark": "needs root and systemd",
            "FLOODMARK_RUN__FLUSH_SECONDS=1": "a file of variables; tests/unit/test_config.py reads them",
            "python -m build --outdir dist": "needs a container engine; test_service_examples.py reads the file",
        },
    ),
    "docs/how-to/run-continuously.md": Page(
        given=CAPTURED
        + "floodmark sink add archive blob --url file://$PWD/archive\n"
        + QUICKLY.replace("{store}", "shop"),
        instead={"4711": "{process}"},
        ready={"floodmark -s shop run": "sink archive:"},
        not_run={
            "2026-01-31T12:00:00Z Running on /srv/shop (process 4711).": SAMPLE,
            "* * * * *  floodmark -s /srv/shop run --once": "a line of a crontab",
            "# /etc/systemd/system/floodmark@.service": "a unit of systemd",
            "[run.retain]": "settings for datasets that the page does not have",
        },
    ),
    "docs/how-to/scale-out.md": Page(
        spark=False,
        given="curl -X PUT {s3}/shop\n",
        needs=("s3_server", "postgres_server"),
        instead={
            "postgresql://shop@db.example/shop": "{postgres}",
            "SHOP_CONTROL=…": "SHOP_CONTROL='{postgres}'",
            "SHOP_S3_KEY=… SHOP_S3_SECRET=…": "SHOP_S3_KEY=reader SHOP_S3_SECRET=secret",
            "s3.region=eu-central-1": (
                "s3.region=eu-central-1 --lake s3.endpoint={s3} --lake s3.path-style-access=true"
            ),
        },
        before={"floodmark attach shop --control env:SHOP_CONTROL": "mkdir another-host && cd another-host"},
        not_run={
            "floodmark move --control env:SHOP_CONTROL \\": "run by tests of moving a store; this one is there already",
            "CREATE ROLE floodmark_owner LOGIN;": "run by a test of a store with its control database on PostgreSQL",
            "[spark.settings]": "settings of a cluster that the page does not have",
            "[spark]": "settings of YARN and of Kubernetes, which the page does not have",
            "spark-submit --master yarn --deploy-mode client \\": "needs YARN",
            "PYSPARK_PYTHON=/opt/floodmark/bin/python \\": "needs a cluster; a test starts a server so",
        },
    ),
    "docs/how-to/schema-evolution.md": Page(
        given=SHOP
        + """\
echo '{{"order_id": "a-1", "price": "12.50"}}' | floodmark capture orders
floodmark flush
echo '{{"order_id": "a-2", "price": 12.50}}' | floodmark capture orders || true
"""
    ),
    "docs/how-to/settle.md": Page(spark=False, given=SHOP, instead={"/data/final-ids": "{directory}/final-ids"}),
    "docs/how-to/torture.md": Page(
        spark=False,
        given=SHOP,
        not_run={"floodmark torture --minutes 5": "takes minutes; run by tests/scenarios/cli/test_torture_command.py"},
    ),
    "docs/how-to/write-a-provider.md": Page(
        given=SHOP
        + """\
mkdir exports
printf 'T-1\\t2026-03-02T08:00:00Z\\nno tab here\\n' > exports/export-1.txt
""",
        not_run={"# pyproject.toml of a package with a provider": "a part of another project's settings"},
    ),
}
