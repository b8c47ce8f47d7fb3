"""An Iceberg REST catalog for the tests: a process of its own that keeps every snapshot, as the specification asks.

It serves PyIceberg's SQL catalog over HTTP. Metadata is changed by the updates that a client sends, under the
requirements that come with them. (Nessie, a single jar, shows only a table's newest snapshot: it cannot be a lake.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from s3 import SECRET, S3Server, free_port, wait_for


@dataclass(frozen=True, slots=True)
class RestCatalog:
    """A running catalog, whose tables are in a bucket."""

    port: int
    bucket: str
    control: Path
    """While this file exists, the answer to a commit is lost: the connection is closed after the commit."""

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def losing_answers(self, commits: int = 1) -> Iterator[None]:
        """The next commits happen, and nobody hears of them."""
        self.control.write_text(str(commits))
        try:
            yield
        finally:
            self.control.unlink(missing_ok=True)


@contextmanager
def rest_catalog(home: Path, s3: S3Server) -> Iterator[RestCatalog]:
    port, bucket = free_port(), s3.create_bucket()
    settings = {
        "uri": f"sqlite:///{home / 'catalog.db'}",
        "warehouse": f"s3://{bucket}/rest",
        "s3.endpoint": s3.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": "AKIDEXAMPLE",
        "s3.secret-access-key": SECRET,
    }
    control = home / "lose"
    process = subprocess.Popen(
        [sys.executable, __file__, str(port), str(control)],
        stdin=subprocess.DEVNULL,
        stdout=(home / "rest.log").open("wb"),
        stderr=subprocess.STDOUT,
        env={**os.environ, "REST_CATALOG": json.dumps(settings)},
    )
    try:
        wait_for(port, process)
        yield RestCatalog(port, bucket, control)
    finally:
        process.terminate()
        process.wait(timeout=30)


# ── the server ───────────────────────────────────────────────────────────────────────────────────────────────────────


def serve(port: int, control: Path) -> None:
    import uvicorn
    from pyiceberg import exceptions
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import CommitTableRequest, Table
    from pyiceberg.table.sorting import SortOrder
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    catalog = SqlCatalog("rest", **json.loads(os.environ["REST_CATALOG"]))
    turn = threading.Lock()
    statuses = {
        exceptions.NoSuchTableError: (404, "NoSuchTableException"),
        exceptions.NoSuchNamespaceError: (404, "NoSuchNamespaceException"),
        exceptions.TableAlreadyExistsError: (409, "AlreadyExistsException"),
        exceptions.NamespaceAlreadyExistsError: (409, "AlreadyExistsException"),
        exceptions.CommitFailedException: (409, "CommitFailedException"),
    }

    def loaded(table: Table) -> Response:
        text = table.metadata.model_dump_json(by_alias=True)
        location = json.dumps(table.metadata_location)
        return Response(
            f'{{"metadata-location":{location},"metadata":{text},"config":{{}}}}', media_type="application/json"
        )

    def is_lost() -> bool:
        left = int(control.read_text() or 0) if control.exists() else 0
        if left:
            control.write_text(str(left - 1))
        return left > 0

    async def config(_: Request) -> Response:
        return JSONResponse({"defaults": {}, "overrides": {}})

    async def namespaces(request: Request) -> Response:
        if request.method == "GET":
            return JSONResponse({"namespaces": [list(item) for item in catalog.list_namespaces()]})
        body = await request.json()
        catalog.create_namespace(tuple(body["namespace"]), body.get("properties") or {})
        return JSONResponse({"namespace": body["namespace"], "properties": {}})

    async def namespace(request: Request) -> Response:
        name = request.path_params["namespace"]
        properties = catalog.load_namespace_properties(name)
        return JSONResponse({"namespace": [name], "properties": properties})

    async def tables(request: Request) -> Response:
        name = request.path_params["namespace"]
        if request.method == "GET":
            found = catalog.list_tables(name)
            return JSONResponse({"identifiers": [{"namespace": list(item[:-1]), "name": item[-1]} for item in found]})
        body = await request.json()
        made = catalog.create_table(
            (name, body["name"]),
            Schema.model_validate(body["schema"]),
            location=body.get("location"),
            partition_spec=PartitionSpec.model_validate(body.get("partition-spec") or {"spec-id": 0, "fields": []}),
            sort_order=SortOrder.model_validate(body.get("write-order") or {"order-id": 0, "fields": []}),
            properties=body.get("properties") or {},
        )
        return loaded(made)

    async def table(request: Request) -> Response:
        name = (request.path_params["namespace"], request.path_params["table"])
        if request.method == "GET":
            return loaded(catalog.load_table(name))
        if request.method == "DELETE":
            catalog.drop_table(name)
            return Response(status_code=204)
        own = {"identifier": {"namespace": [name[0]], "name": name[1]}}  # Iceberg's own client leaves it out
        asked = CommitTableRequest.model_validate_json(json.dumps(own | json.loads(await request.body())))
        done = catalog.commit_table(catalog.load_table(name), asked.requirements, asked.updates)
        if is_lost():
            raise Lost
        return Response(done.model_dump_json(by_alias=True), media_type="application/json")

    async def rename(request: Request) -> Response:
        body = await request.json()
        source, target = ((*body[key]["namespace"], body[key]["name"]) for key in ("source", "destination"))
        catalog.rename_table(source, target)
        return Response(status_code=204)

    class Lost(Exception):
        pass

    def told(endpoint):
        """Errors as the specification has them."""

        async def called(request: Request) -> Response:
            try:
                with turn:
                    return await endpoint(request)
            except Lost:
                return LostAnswer()
            except Exception as error:
                known = (said for kind, said in statuses.items() if isinstance(error, kind))
                status, name = next(known, (500, "ServerError"))
                return JSONResponse({"error": {"message": str(error), "type": name, "code": status}}, status)

        return called

    class LostAnswer(Response):
        """An answer that breaks off after its first line: the server closes the connection."""

        async def __call__(self, scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"999")]})
            raise ConnectionAbortedError

    below = "/v1/namespaces/{namespace}"
    app = Starlette(
        routes=[
            Route("/v1/config", told(config)),
            Route("/v1/namespaces", told(namespaces), methods=["GET", "POST"]),
            Route(below, told(namespace)),
            Route(f"{below}/tables", told(tables), methods=["GET", "POST"]),
            Route(f"{below}/tables/{{table}}", told(table), methods=["GET", "POST", "DELETE"]),
            Route("/v1/tables/rename", told(rename), methods=["POST"]),
        ]
    )
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
