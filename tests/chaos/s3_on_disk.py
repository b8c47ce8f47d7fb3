"""The S3 server of the tests, with objects that outlive it: `python s3_on_disk.py PORT FOLDER`.

An object is on the disk before its request is answered. A server that starts puts back what it finds there.
"""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path
from urllib.parse import quote, unquote


def serve(port: int, folder: Path) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import run_simple
    from werkzeug.test import Client

    app, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()
    direct = Client(app)
    host = {"base_url": f"http://127.0.0.1:{port}"}
    for path in sorted(folder.iterdir(), key=lambda path: path.name.count("%2F")):  # buckets first
        if not path.name.startswith("."):
            direct.put(f"/{unquote(path.name)}", data=path.read_bytes(), **host)

    def in_turn(environ, start_response):
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length)
        if len(body) < length:  # its client died: an object is there whole or not at all
            start_response("400 Bad Request", [])
            return [b""]
        environ["wsgi.input"] = io.BytesIO(body)
        with turn:
            answer: list = []
            content = b"".join(app(environ, lambda status, headers, info=None: answer.append((status, headers))))
            status, headers = answer[0]
            name = quote(environ["PATH_INFO"].strip("/"), safe="")
            if environ["REQUEST_METHOD"] == "PUT" and status.startswith("200"):
                temporary = folder / f".{name}"
                temporary.write_bytes(body)
                temporary.replace(folder / name)
        start_response(status, headers)
        return io.BytesIO(content)

    run_simple("127.0.0.1", port, in_turn, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
