"""Each webhook case, through the application, with the bytes exactly as they would come."""

import base64
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from prefetch.adapters import mlflow
from prefetch.adapters.outcome import Refused, Request, Trust
from prefetch.app import Service
from prefetch.jobs import Jobs
from prefetch.pull import Engine, EngineConfig
from prefetch.source import Source
from prefetch.worker import Worker
from tests.support.prefetch_cases import cases

CASES = cases(webhooks=True)


class Receiver:
    """The service of a case, without its worker: jobs stay queued."""

    def __init__(self, case_input: dict[str, Any], folder: Path) -> None:
        settings = case_input["settings"]
        self.certificates = case_input.get("certs", {})
        self.fetched: Counter[str] = Counter()
        self.jobs = Jobs(folder / "jobs.sqlite3")
        engine = Engine(EngineConfig(folder / "target", folder / "state"))
        trust = Trust(
            allow=tuple(Source.parse(url) for url in settings["allow"]),
            tokens=tuple(settings["tokens"]),
            mlflow_secret=settings.get("mlflow_secret"),
            huggingface_secret=settings.get("huggingface_secret"),
            source_template=settings.get("source_template"),
            sns_topics=tuple(settings.get("sns_topics", ())),
            sns_cert_hosts=tuple(settings.get("sns_cert_hosts", ())),
            marker_names=tuple(settings.get("marker_names", ())),
        )
        worker = Worker(engine, self.jobs, None, 1, 3600, 3600)
        service = Service(engine, self.jobs, worker, None, trust, 2**20, lambda: case_input["now"], self._fetch)
        self._client = TestClient(service.app)

    def post(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        headers = [(name.encode(), value.encode()) for name, value in request["headers"].items()]
        answer = self._client.post(request["path"], content=request["body"].encode(), headers=headers)
        return answer.status_code, answer.json()

    async def _fetch(self, url: str) -> bytes:
        self.fetched[url] += 1
        return str(self.certificates.get(url, "")).encode()


@pytest.fixture
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(request.param["input"], tmp_path)
    yield made
    made.jobs.close()


def _is(status: int, wanted: Any) -> bool:
    return status in wanted["in"] if isinstance(wanted, dict) else status == wanted


@pytest.mark.parametrize(
    ("receiver", "case"), [(c, c) for c in CASES], ids=[c["id"] for c in CASES], indirect=["receiver"]
)
def test_case(receiver: Receiver, case: dict[str, Any]) -> None:
    expect = case["expect"]
    requests = case["input"].get("requests") or [case["input"]["request"]]
    answers = [receiver.post(request) for request in requests]
    wanted = expect.get("status", {"in": expect.get("status_in")})
    for (status, body), one in zip(
        answers, wanted if isinstance(wanted, list) else [wanted] * len(answers), strict=True
    ):
        assert _is(status, one), body
    for status, body in answers:
        if status >= 400:
            assert body["error"]["message"].endswith((".", "…'."))
    valid = expect.get("valid")
    for (status, _), authentic in zip(
        answers, valid if isinstance(valid, list) else [valid] * len(answers), strict=True
    ):
        if authentic is not None:
            assert (status in (401, 403)) is not authentic
    jobs = receiver.jobs.list()
    assert len(jobs) <= expect["jobs_max"] if "jobs_max" in expect else len(jobs) == expect["jobs"]
    if "job" in expect:
        shown = jobs[0].as_dict()
        assert {name: shown[name] for name in expect["job"]} == expect["job"]
    if expect.get("same_job"):
        assert len({body["id"] for _, body in answers}) == 1
    for index, field in expect.get("error_names_field", {}).items():
        assert answers[int(index)][1]["error"]["param"].startswith(field)
    if "fetches" in expect:
        url = json.loads(requests[0]["body"])["SubscribeURL"]
        assert receiver.fetched[url] == expect["fetches"]["SubscribeURL"]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Receiver]:
    """Takes our own announcements with the token `t`."""
    made = Receiver({"settings": {"allow": ["s3://bkt/"], "tokens": ["t"]}, "now": 0}, tmp_path)
    yield made
    made.jobs.close()


_ANNOUNCEMENT = '{"model": "m", "version": "1", "source": "s3://bkt/m/1/"'
_EVENT = '"detail-type": "Object Created", "source": "aws.s3"'


@pytest.mark.parametrize(
    ("body", "status", "param", "sentence"),
    [
        (_ANNOUNCEMENT + "}", 202, None, None),
        (_ANNOUNCEMENT + ', "model": "n"}', 400, None, "The body is not valid JSON: a name stands twice: 'model'."),
        (
            _ANNOUNCEMENT + ', "manifest": {"files": {"w": {"size": 1, "size": 2}}}}',
            400,
            None,
            "The body is not valid JSON: a name stands twice: 'size'.",
        ),
        (_ANNOUNCEMENT + ', "priority": NaN}', 400, None, "The body is not valid JSON: NaN is no JSON."),
        (_ANNOUNCEMENT + ', "priority": -Infinity}', 400, None, "The body is not valid JSON: -Infinity is no JSON."),
        (_ANNOUNCEMENT, 400, None, "The body is not valid JSON: Expecting ',' delimiter: line 1 column 57 (char 56)."),
        ('{"model": "\\ud800"}', 400, None, None),
        ("[" * 100_000, 400, None, "The body is not valid JSON: it is nested too deeply."),
        ("[1]", 422, "", "The body is wrong: it must be a mapping (got [1])."),
        ('{"detail-type": 5}', 422, "source", "The field 'source' is wrong: it is required."),
        (
            '{"detail-type": 5, "source": "aws.s3"}',
            422,
            "detail-type",
            "The field 'detail-type' is wrong: it must be a valid string (got 5).",
        ),
        ("{" + _EVENT + ', "source": "x"}', 400, None, "The body is not valid JSON: a name stands twice: 'source'."),
        ("{" + _EVENT + "}", 422, "detail", "The field 'detail' is wrong: it is required."),
    ],
)
def test_what_the_body_must_be(own: Receiver, body: str, status: int, param: str | None, sentence: str | None) -> None:
    request = {"path": "/v1/announcements", "headers": {"Authorization": "Bearer t"}, "body": body}
    got, answer = own.post(request)
    assert got == status, answer
    if status >= 400:
        assert answer["error"]["param"] == param
        assert "(got b" not in answer["error"]["message"]
    if sentence:
        assert answer["error"]["message"] == sentence


def test_a_certificate_is_fetched_only_from_an_allowed_host(tmp_path: Path) -> None:
    case = next(case for case in CASES if case["id"].startswith("p23"))
    case_input = case["input"] | {"settings": case["input"]["settings"] | {"sns_cert_hosts": ["sns.other.example"]}}
    receiver = Receiver(case_input, tmp_path)
    status, body = receiver.post(case_input["request"])
    assert status == 403
    assert body["error"]["param"] == "SigningCertURL"
    assert not receiver.fetched


def test_a_time_beyond_all_numbers_is_refused() -> None:
    stamp = b"9" * 400
    digest = hmac.new(b"s", b".".join((b"d", stamp, b"{}")), hashlib.sha256).digest()
    headers = {
        "x-mlflow-signature": b"v1," + base64.b64encode(digest),
        "x-mlflow-delivery-id": b"d",
        "x-mlflow-timestamp": stamp,
    }
    with pytest.raises(Refused) as caught:
        mlflow.authenticate(Request(headers, b"{}"), "s", 1.0)
    assert caught.value.status == 401
