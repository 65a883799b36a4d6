"""Amazon's queue and its notifications, from moto's server; the copies come from the real S3 server."""

import base64
import datetime
import http.server
import json
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from bench.ports import free_port
from bench.s3_server import HOST, environment
from prefetch.adapters.sns import SIGNED
from tests.support.fault_proxy import FaultProxy, Rule
from tests.support.prefetch import MODEL, Bucket, files_in
from tests.support.prefetch_service import StartService
from tests.support.waiting import wait_for

VISIBILITY = 6


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """The URL of moto's server."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "moto_server"), "-H", HOST, "-p", str(port)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        try:
            urllib.request.urlopen(f"http://{HOST}:{port}/moto-api/data.json", timeout=5).close()
        except OSError:
            return False
        return True

    wait_for(answers, "moto's server")
    yield f"http://{HOST}:{port}"
    process.kill()
    process.wait()


@pytest.fixture
def sqs(moto: str) -> Any:
    return boto3.client("sqs", endpoint_url=moto, region_name="us-east-1")


class Queues:
    """A queue with its dead-letter queue."""

    def __init__(self, sqs: Any, name: str, receives: int = 2) -> None:
        self._sqs = sqs
        self._dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=self._dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives})
        self.url: str = sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})["QueueUrl"]

    def settings(self, moto: str) -> dict[str, Any]:
        return {
            "queue": "sqs://" + self.url.split("://")[1],
            "sqs_endpoint": moto,
            "sqs_visibility": VISIBILITY,
            "s3_region": "us-east-1",
            "jobs": 1,
        }

    def waiting(self) -> int:
        """Messages in the queue, those that are worked on included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        return sum(map(int, self._attributes(self.url, names).values()))

    def dead(self) -> int:
        return int(self._attributes(self._dead, ["ApproximateNumberOfMessages"]).popitem()[1])

    def _attributes(self, url: str, names: list[str]) -> dict[str, str]:
        return dict(self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"])


@pytest.mark.long
def test_two_machines_and_one_that_dies(
    moto: str, sqs: Any, model: Bucket, proxy: FaultProxy, start: StartService, tmp_path: Path
) -> None:
    """The message is hidden longer than its visibility while it is worked on; after kill -9 another machine does it."""
    queues = Queues(sqs, "dies", receives=5)
    rule = Rule(model.key("model.safetensors"), times=1, hang=True)
    proxy.rules.append(rule)
    first = start("first", **queues.settings(moto))
    job = first.announce(model.source)
    wait_for(lambda: rule.used, "the copy")
    second = start("second", **queues.settings(moto))
    # Extended again and again: nobody else gets it.
    threading.Event().wait(VISIBILITY + 2)
    assert second.ask("GET", "/v1/jobs", token=None)[1]["jobs"] == []
    assert first.job(job["id"])["state"] == "running"
    first.kill()
    assert second.wait_for_job_of("m", "published")["id"] == job["id"]
    assert files_in(tmp_path / "target" / "m" / "1") == MODEL
    wait_for(lambda: queues.waiting() == 0, "an empty queue")
    # The machine that announced it sees that it was done elsewhere.
    first.start()
    assert first.job(job["id"])["state"] == "published"
    # Done twice is harmless.
    again = second.announce(model.source)
    assert second.wait_for_job(again["id"], "published")["id"] == job["id"]
    assert files_in(tmp_path / "target" / "m" / "1") == MODEL


@pytest.mark.long
def test_a_job_that_fails_goes_to_the_dead_letter_queue(
    moto: str, sqs: Any, model: Bucket, start: StartService
) -> None:
    queues = Queues(sqs, "fails", receives=1)
    model.put("model.safetensors", b"no safetensors")
    service = start("one", **queues.settings(moto))
    job = service.announce(model.source)
    failed = service.wait_for_job(job["id"], "failed")
    assert "model.safetensors is damaged" in failed["error"]
    wait_for(lambda: queues.dead() == 1, "the dead letter")
    assert queues.waiting() == 0


def test_without_a_queue_the_announcement_is_refused_and_may_come_again(
    moto: str, model: Bucket, start: StartService
) -> None:
    queue = {"queue": f"sqs://{HOST}/123456789012/no-such-queue", "sqs_endpoint": moto, "s3_region": "us-east-1"}
    service = start("one", **queue)
    for _ in range(2):
        status, body = service.ask("POST", "/v1/announcements", {"model": "m", "version": "1", "source": model.source})
        assert status == 503
        assert "cannot be put into the queue" in body["error"]["message"]
    assert service.ask("GET", "/v1/jobs", token=None)[1]["jobs"] == []


# Amazon SNS.


class Authority:
    """A key that signs messages, and an https server with its certificate, as Amazon has."""

    def __init__(self, folder: Path) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(1)
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        self.file = folder / "certificate.pem"
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)
        self.file.write_bytes(self.pem)
        key = folder / "key.pem"
        key.write_bytes(
            self.key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        self.fetched: list[str] = []
        authority = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                authority.fetched.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", str(len(authority.pem)))
                self.end_headers()
                self.wfile.write(authority.pem)

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.host = f"localhost:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def signed(self, message: dict[str, Any]) -> dict[str, Any]:
        message = message | {"SigningCertURL": f"https://{self.host}/certificate.pem", "SignatureVersion": "2"}
        fields = [field for field in SIGNED[message["Type"]] if message.get(field) is not None]
        text = "".join(f"{field}\n{message[field]}\n" for field in fields)
        signature = self.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return message | {"Signature": base64.b64encode(signature).decode()}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    made = Authority(tmp_path)
    yield made
    made.close()


class Subscriber:
    """Takes what moto delivers: (headers, message)."""

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, str], dict[str, Any]]] = []
        subscriber = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                subscriber.received.append((dict(self.headers.items()), json.loads(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def subscriber() -> Iterator[Subscriber]:
    made = Subscriber()
    yield made
    made.close()


def test_an_event_comes_through_sns(
    moto: str, model: Bucket, start: StartService, authority: Authority, subscriber: Subscriber, tmp_path: Path
) -> None:
    """moto delivers as SNS does, but signs with nothing real: as it came it is refused, signed it is a job."""
    sns = boto3.client("sns", endpoint_url=moto, region_name="us-east-1")
    topic = sns.create_topic(Name="model-events")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=subscriber.url)
    model.put("_READY", b"")
    event = {
        "detail-type": "Object Created",
        "source": "aws.s3",
        "detail": {"bucket": {"name": "models-prod"}, "object": {"key": model.key("_READY"), "sequencer": "1"}},
    }
    sns.publish(TopicArn=topic, Message=json.dumps(event), Subject="Object created")
    headers, message = wait_for(
        lambda: next((one for one in subscriber.received if one[1].get("Type") == "Notification"), None),
        "moto's delivery",
    )
    assert headers["Content-Type"].startswith("text/plain")
    service = start(
        "one",
        {"SSL_CERT_FILE": str(authority.file)},
        sns_topics=[topic],
        sns_cert_hosts=[authority.host],
        tokens=[],
    )

    def deliver(one: dict[str, Any]) -> tuple[int, Any]:
        # moto leaves this header out.
        given = {"Content-Type": headers["Content-Type"], "x-amz-sns-message-type": one["Type"]}
        return service.ask("POST", "/v1/announcements", json.dumps(one).encode(), token=None, headers=given)

    status, body = deliver(message)
    assert (status, body["error"]["param"]) == (403, "SigningCertURL")
    assert deliver(message | {"SigningCertURL": f"https://{authority.host}/certificate.pem"})[0] == 401
    signed = authority.signed(message)
    status, job = deliver(signed)
    assert status == 202, job
    assert deliver(signed)[1]["id"] == job["id"]
    assert deliver(signed | {"Message": signed["Message"].replace("models-prod", "models-other")})[0] == 401
    assert service.wait_for_job(job["id"], "published")["source"] == model.source
    assert files_in(tmp_path / "target" / job["model"] / "1") == MODEL
    # The certificate is fetched once.
    assert authority.fetched == ["/certificate.pem"]
    confirmation = {
        "Type": "SubscriptionConfirmation",
        "MessageId": "2",
        "TopicArn": topic,
        "Message": "You have chosen to subscribe.",
        "Timestamp": message["Timestamp"],
        "Token": "token",
        "SubscribeURL": f"https://{authority.host}/?Action=ConfirmSubscription",
    }
    assert deliver(authority.signed(confirmation)) == (200, {"confirmed": True})
    assert authority.fetched[1:] == ["/?Action=ConfirmSubscription"]
    elsewhere = confirmation | {"SubscribeURL": f"https://{HOST}:1/"}
    assert deliver(authority.signed(elsewhere))[1]["error"]["param"] == "SubscribeURL"
