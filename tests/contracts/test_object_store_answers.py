"""Whatever an object store refuses is told in one sentence with the way out, and never with a secret in it."""

from __future__ import annotations

import socket
import threading
import time
import traceback
from collections.abc import Callable

import pytest

from floodmark.delivery.outcomes import Busy
from floodmark.delivery.sinks import objects
from floodmark.delivery.sinks.blob import KIND
from floodmark.delivery.sinks.objects import ObjectPlace, place_of
from floodmark.errors import FloodmarkError, Permanent
from s3 import SECRET, Reply, S3Server, free_port, refusal, scripted, settings

Call = Callable[[ObjectPlace], object]
CALLS: dict[str, Call] = {
    "create": lambda place: place.create("m/all/0-3.parquet", b"content"),
    "read": lambda place: place.read("m/all/0-3.parquet"),
    "list": lambda place: place.list("m/all"),
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Call:
    return CALLS[request.param]


def place_at(endpoint: str, url: str = "s3://bucket/prefix") -> ObjectPlace:
    return place_of({**KIND.defaults, **settings(url, endpoint)})


def refused(call: Call, place: ObjectPlace) -> FloodmarkError:
    with pytest.raises(FloodmarkError) as caught:
        call(place)
    told = caught.value
    everything = "".join(traceback.format_exception(told)) + repr(told) + repr(place)
    assert SECRET not in everything
    assert "AKIDEXAMPLE" not in everything
    assert "\n" not in str(told)
    assert "<" not in str(told)
    assert told.hint
    return told


def test_a_bucket_that_is_not_there(s3_server: S3Server, call: Call) -> None:
    told = refused(call, place_at(s3_server.endpoint, "s3://nosuchbucket/prefix"))

    assert isinstance(told, Permanent)
    assert "There is no bucket 'nosuchbucket'" in told.message


@pytest.mark.parametrize(
    ("reply", "family", "said"),
    [
        (refusal(403, "AccessDenied"), Permanent, "Access to s3://bucket/prefix was denied"),
        (refusal(403, "InvalidAccessKeyId", "<AWSAccessKeyId>AKIDEXAMPLE</AWSAccessKeyId>"), Permanent, "credentials"),
        (refusal(403, "SignatureDoesNotMatch", f"<StringToSign>{SECRET}</StringToSign>"), Permanent, "credentials"),
        (refusal(400, "ExpiredToken"), Permanent, "credentials: ExpiredToken"),
        (Reply(401), Permanent, "credentials"),
        (refusal(403, "RequestTimeTooSkewed"), Permanent, "clock"),
        (
            refusal(301, "PermanentRedirect", "<Endpoint>bucket.s3-eu-west-1.amazonaws.com</Endpoint>"),
            Permanent,
            "region",
        ),
        (refusal(400, "AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"), Permanent, "region 'eu-west-1'"),
        (refusal(503, "SlowDown"), Busy, "busy: SlowDown"),
        (refusal(429, "TooManyRequests"), Busy, "busy: TooManyRequests"),
        (refusal(500, "InternalError"), Busy, "busy: InternalError"),
        (Reply(502, b"<html>Bad Gateway</html>"), Busy, "busy: 502"),
        (Reply(0), Busy, "no connection"),
        (refusal(400, "KeyTooLongError"), Permanent, "too long"),
        (refusal(501, "NotImplemented"), Permanent, "only if it is absent"),
        (refusal(400, "SomethingNew"), Permanent, "refused the request: SomethingNew"),
    ],
    ids=lambda value: f"{value.status}" if isinstance(value, Reply) else getattr(value, "__name__", "said"),
)
def test_each_refusal_is_told_apart(reply: Reply, family: type[FloodmarkError], said: str, call: Call) -> None:
    with scripted(lambda _: reply) as server:
        told = refused(call, place_at(server.endpoint))

        assert isinstance(told, family)
        assert said in told.message
        assert len(server.requests) <= 1 + objects.RETRIES["max_retries"]


def test_the_right_region_is_named_where_the_store_names_it() -> None:
    with scripted(lambda _: refusal(400, "AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>")) as server:
        told = refused(CALLS["create"], place_at(server.endpoint))
    assert "region=eu-west-1" in (told.hint or "")


def test_nobody_listens(call: Call) -> None:
    start = time.monotonic()

    told = refused(call, place_at(f"http://127.0.0.1:{free_port()}"))

    assert isinstance(told, Busy)
    assert "cannot be reached: there is no connection" in told.message
    assert time.monotonic() - start < 40  # three more tries, with pauses of at most two seconds


def test_a_store_that_never_answers_is_given_up(call: Call, monkeypatch) -> None:
    monkeypatch.setitem(objects.CLIENT, "timeout", "200ms")
    monkeypatch.setitem(objects.RETRIES, "max_retries", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        told = refused(call, place_at(f"http://127.0.0.1:{silent.getsockname()[1]}"))

    assert isinstance(told, Busy)
    assert "did not answer in time" in told.message


def test_a_dataset_called_like_a_part_of_the_clouds_own_addresses_confuses_nobody() -> None:
    place = place_at(f"http://127.0.0.1:{free_port()}")
    told = refused(lambda place: place.create("oauth2/latest/api/token/0-3.jsonl", b"x"), place)
    assert "cannot be reached" in told.message


def test_no_credentials_anywhere(call: Call, monkeypatch) -> None:
    """Then the machine's own identity is asked for, and this machine has none."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    place = place_of({**KIND.defaults, "url": "s3://bucket", "endpoint": f"http://127.0.0.1:{free_port()}"})

    told = refused(call, place)

    assert isinstance(told, Permanent)
    assert "no credentials" in told.message


def test_the_providers_environment_variables_count(s3_server: S3Server, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    place = place_of(
        {**KIND.defaults, "url": f"s3://{s3_server.create_bucket()}/from-env", "endpoint": s3_server.endpoint}
    )

    assert place.create("k", b"content")
    assert place.read("k") == b"content"


def test_settings_that_contradict_each_other_are_told(monkeypatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    told = refused(CALLS["create"], place_of({**KIND.defaults, "url": "az://container/prefix"}))
    assert isinstance(told, Permanent)
    assert "az://container/prefix" in told.message


def test_an_answer_that_was_lost_meets_its_own_object() -> None:
    """The request is sent again inside; the store says that the key is taken, and the caller compares."""
    stored: dict[str, bytes] = {}
    lock = threading.Lock()

    def answer(request) -> Reply:
        with lock:
            if request.method == "GET":
                return Reply(200, stored[request.path])
            assert request.headers["if-none-match"] == "*"
            if request.path in stored:
                return refusal(412, "PreconditionFailed")
            stored[request.path] = request.body
            return Reply(0)

    with scripted(answer) as server:
        place = place_at(server.endpoint)
        assert not place.create("k", b"content")
        assert place.read("k") == b"content"
        assert [request.method for request in server.requests] == ["PUT", "PUT", "GET"]


@pytest.mark.parametrize(
    ("given", "header", "value", "taken", "missing"),
    [
        ({"url": "s3://bucket/x"}, "if-none-match", "*", refusal(412, "PreconditionFailed"), "NoSuchBucket"),
        (
            {"url": "gs://bucket/x", "bearer_token": "token"},
            "x-goog-if-generation-match",
            "0",
            refusal(412, "PreconditionFailed"),
            "NoSuchBucket",
        ),
        (
            {"url": "az://bucket/x", "account": "someone", "account_key": "aHVzaGh1c2g="},
            "if-none-match",
            "*",
            refusal(409, "BlobAlreadyExists"),
            "ContainerNotFound",
        ),
    ],
    ids=["s3", "gs", "az"],
)
def test_each_provider_is_asked_to_create_only_what_is_absent(
    given: dict[str, str], header: str, value: str, taken: Reply, missing: str
) -> None:
    stored: set[str] = set()

    def answer(request) -> Reply:
        if "nosuch" in request.path:
            return refusal(404, missing)
        assert request.headers[header] == value
        if request.path in stored:
            return taken
        stored.add(request.path)
        return Reply(201, headers={"ETag": '"1"', "x-goog-generation": "1"})

    with scripted(answer) as server:
        own = {key: value for key, value in settings("", server.endpoint).items() if key != "url"}
        known = {"endpoint": server.endpoint} if given["url"][:2] != "s3" else own
        place = place_of({**KIND.defaults, **known, **given})
        assert [place.create("m/all/0-3.parquet", b"x") for _ in range(2)] == [True, False]
        elsewhere = place_of({**KIND.defaults, **known, **given, "url": given["url"].replace("bucket", "nosuch")})
        told = refused(CALLS["create"], elsewhere)
    assert isinstance(told, Permanent)
    assert told.message.startswith(("There is no bucket 'nosuch'", "There is no container 'nosuch'"))
