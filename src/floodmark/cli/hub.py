"""`floodmark hub`"""

from __future__ import annotations

from pathlib import Path

import click

from floodmark.cli.options import Amount, store_path
from floodmark.cli.output import note
from floodmark.signals import StopSignals, say_now


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="The port; 0 selects a free one."
)
@click.option(
    "--tls-cert",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Serve HTTPS with this certificate (PEM, with its chain).",
)
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="The certificate's private key (PEM).")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name that is allowed in the Host header. Can be repeated. On loopback all other names are refused.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes.")
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Requests that one worker stores at the same time.",
)
@click.option(
    "--requests-max",
    type=click.IntRange(1, 100_000),
    default=64,
    show_default=True,
    help="Requests that one worker keeps in memory; further requests get status 429.",
)
@click.option(
    "--client-requests-max",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Most requests of one sender in one worker. A sender never gets more than are free.",
)
@click.option(
    "--body-bytes-max",
    type=click.IntRange(1024),
    default=16 << 20,
    show_default=True,
    help="Largest request body, as sent.",
)
@click.option(
    "--content-bytes-max",
    type=click.IntRange(1024),
    default=32 << 20,
    show_default=True,
    help="Largest request body, decompressed.",
)
@click.option("--rows-max", type=click.IntRange(1), default=200_000, show_default=True, help="Most rows in one body.")
@click.option(
    "--columns-max", type=click.IntRange(1), default=2_000, show_default=True, help="Most columns in one body."
)
@click.option(
    "--values-max",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="Most values in one body: rows times columns, plus the elements of lists.",
)
@click.option(
    "--nesting-max",
    type=click.IntRange(1, 256),
    default=64,
    show_default=True,
    help="Deepest nesting of lists and objects.",
)
@click.option(
    "--header-bytes-max",
    type=click.IntRange(8192),
    default=384 << 10,
    show_default=True,
    help="Largest total size of a request's headers.",
)
@click.option(
    "--request-seconds-max",
    type=Amount(0.1),
    default=60.0,
    show_default=True,
    help="Timeout for receiving a request.",
)
@click.option(
    "--key-days",
    type=click.IntRange(1),
    default=7,
    show_default=True,
    help="How long the idempotency key of a capture is stored.",
)
@click.option(
    "--quarantine-max",
    type=click.IntRange(0),
    default=10_000,
    show_default=True,
    help="Most quarantine entries per dataset. Beyond this, captures with rows that do not fit are refused.",
)
@click.option(
    "--quarantine-token-max",
    type=click.IntRange(0),
    default=1_000,
    show_default=True,
    help="Most quarantine entries per token.",
)
@click.option(
    "--log", type=click.Choice(["text", "json"]), default="text", show_default=True, help="The form of log lines."
)
@click.option("--json", "as_json", is_flag=True, help="Print start and stop as JSON lines on standard output.")
def hub(
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    allowed_hosts: tuple[str, ...],
    workers: int,
    threads: int,
    requests_max: int,
    client_requests_max: int,
    body_bytes_max: int,
    content_bytes_max: int,
    rows_max: int,
    columns_max: int,
    values_max: int,
    nesting_max: int,
    header_bytes_max: int,
    request_seconds_max: float,
    key_days: int,
    quarantine_max: int,
    quarantine_token_max: int,
    log: str,
    as_json: bool,
) -> None:
    """Receive rows over HTTP, from other stores and from any client.

    Stores with a forward sink send their chunks here. Each row is stored exactly once, also after crashes and retries.
    Other clients post JSON. Rows are durable when the response reports success; `floodmark flush` commits them. The hub
    itself never starts Spark.

    Without tokens the hub listens on this machine only. Create one with `floodmark token add`; every request that sends
    rows then needs a token.

    SIGTERM or Ctrl-C stops the hub after the current requests. A second signal stops it at once: requests in progress
    get no response, and their senders repeat them. Exit codes: 0 stopped; 1 it could not start; 130 stopped at once by
    a second signal.

    \b
    Examples:
      floodmark hub
      floodmark hub --host 0.0.0.0 --port 8443 --tls-cert hub.pem --tls-key hub.key
      curl -d '[{"id": 1}]' -H 'Content-Type: application/json' http://127.0.0.1:8080/v1/datasets/orders/capture
    """
    signals = StopSignals()
    from floodmark.hub.serve import Tls, serve
    from floodmark.hub.settings import HubSettings

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("Give both --tls-cert and --tls-key, or neither.")
    settings = HubSettings(
        body_bytes_max=body_bytes_max,
        content_bytes_max=content_bytes_max,
        rows_max=rows_max,
        columns_max=columns_max,
        values_max=values_max,
        nesting_max=nesting_max,
        header_bytes_max=header_bytes_max,
        request_seconds_max=request_seconds_max,
        threads=threads,
        requests_max=requests_max,
        client_requests_max=client_requests_max,
        key_days=key_days,
        quarantine_max=quarantine_max,
        quarantine_token_max=quarantine_token_max,
        log=log,
    )
    serve(
        store_path(),
        host=host,
        port=port,
        workers=workers,
        settings=settings,
        tls=None if tls_cert is None or tls_key is None else Tls(tls_cert, tls_key),
        allowed_hosts=allowed_hosts,
        warn=note,
        signals=signals,
        listening=lambda address: _tell(
            f"Hub on {address}, {workers} {'worker' if workers == 1 else 'workers'}. SIGTERM or Ctrl-C stops it.",
            {"event": "listening", "address": address, "workers": workers},
            as_json=as_json,
        ),
        stopped_at_once=lambda: _tell(
            "Hub stopped by a second signal. Requests in progress got no response: their senders must repeat them.",
            {"event": "stopped", "at_once": True},
            as_json=as_json,
        ),
    )
    _tell("Hub stopped.", {"event": "stopped", "at_once": False}, as_json=as_json)


def _tell(text: str, event: dict[str, object], *, as_json: bool) -> None:
    import orjson

    say_now(orjson.dumps(event).decode() if as_json else text, to_output=as_json)
