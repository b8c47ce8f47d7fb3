"""Reading a request: bounded in bytes and in time, and completely or not at all."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from floodmark import wire
from floodmark.hub.problems import Problem, Refusal

HINT = "Nothing was stored."


async def read_body(request: Request, *, bytes_max: int, seconds_max: float) -> bytes:
    """The body, if it is complete, in time, and not too large."""
    declared = _declared_length(request)
    try:
        async with asyncio.timeout(seconds_max):
            body = await _received(request, bytes_max=bytes_max, skip=declared is not None and declared > bytes_max)
    except TimeoutError:
        raise Refusal(
            Problem(
                "TooSlow",
                408,
                f"The request took more than {seconds_max:g} seconds to arrive.",
                HINT,
                headers={"Connection": "close"},
            )
        ) from None
    except ClientDisconnect:
        raise incomplete() from None
    if declared is not None and declared != len(body):
        raise incomplete()
    return body


async def _received(request: Request, *, bytes_max: int, skip: bool) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > 2 * bytes_max:  # read this far only so that a client that sends before it reads gets a response
            raise _too_large(bytes_max, close=True)
        if size <= bytes_max and not skip:
            parts.append(part)
    if size > bytes_max:
        raise _too_large(bytes_max, close=False)
    return b"".join(parts)


def _too_large(bytes_max: int, *, close: bool) -> Refusal:
    return Refusal(
        Problem(
            "TooLarge",
            413,
            f"The body is larger than {bytes_max:,} bytes.",
            f"{HINT} Send fewer rows at a time.",
            headers={"Connection": "close"} if close else {},
        )
    )


def incomplete() -> Refusal:
    return Refusal(Problem("MalformedChunk", 400, "The body is incomplete.", HINT))


def _declared_length(request: Request) -> int | None:
    text = one_header(request, "content-length")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise bad_request("Content-Length is not a number.")
    return int(text)


def one_header(request: Request, name: str) -> str | None:
    """A header's value; refused if it is given twice."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise bad_request(f"The request has the header {name} {len(values)} times.")
    return values[0].strip() if values else None


def check_host(request: Request, allowed: frozenset[str] | None) -> None:
    """Refuse a request with a host name that is not this hub's."""
    if allowed is None:
        return
    host = one_header(request, "host") or ""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower().rstrip(".") not in allowed:
        raise Refusal(
            Problem(
                "WrongHost",
                421,
                "The request names another host than this hub.",
                f"{HINT} Use the hub's own address, or start it with --allowed-host.",
            )
        )


def content_encoding(request: Request) -> str:
    encoding = (one_header(request, "content-encoding") or "identity").lower()
    if encoding not in wire.ENCODINGS:
        raise Refusal(
            Problem(
                "UnsupportedEncoding",
                415,
                "This hub does not support the body's Content-Encoding.",
                f"{HINT} Use one of {', '.join(wire.ENCODINGS)}.",
                headers={"Accept-Encoding": ", ".join(wire.ENCODINGS)},
            )
        )
    return encoding


def content_type(request: Request, allowed: frozenset[str]) -> str:
    media, _, parameters = (one_header(request, "content-type") or "").partition(";")
    media = media.strip().lower()
    charset = parameters.lower().replace(" ", "").replace('"', "").partition("charset=")[2].partition(";")[0]
    if media not in allowed or charset not in {"", "utf-8", "utf8"}:
        raise Refusal(
            Problem(
                "UnsupportedType",
                415,
                "This address does not support the body's Content-Type.",
                f"{HINT} Use {' or '.join(sorted(allowed))}, in UTF-8.",
            )
        )
    return media


def bad_request(detail: str) -> Refusal:
    return Refusal(Problem("BadRequest", 400, detail, HINT))
