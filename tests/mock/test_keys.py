"""Keys, as clients of a running gateway meet them: on every route, ahead of the body, and in no log line."""

import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from bench.mock_engine.running import MockEngine
from devtools.paths import ROOT
from gateway.access import command
from tests.support.chat import MODEL, chat, completion
from tests.support.gateway import Gateway, running_gateway
from tests.support.waiting import wait_for

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat(max_tokens=2),
    "/v1/completions": completion(max_tokens=2),
    "/tokenize": {"model": MODEL, "prompt": "a"},
    "/detokenize": {"model": MODEL, "tokens": [5]},
}


class Keyed:
    """A gateway that wants keys, and one of each kind."""

    def __init__(self, gateway: Gateway, file: Path, keys: dict[str, str]) -> None:
        self.gateway = gateway
        self.file = file
        self.keys = keys

    def send(self, method: str, path: str, key: str | None, body: Any = None, **headers: str) -> httpx.Response:
        sent = headers | ({} if key is None else {"Authorization": f"Bearer {self.keys.get(key, key)}"})
        return httpx.request(method, self.gateway.url + path, json=body, headers=sent, timeout=30, verify=False)

    def log_lines(self) -> list[str]:
        return [json.dumps(line) for line in self.gateway.logs]


@pytest.fixture(scope="module")
def keyed_process(
    engine_process: MockEngine, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Keyed]:
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys = {
        "a": new_key(file, "a"),
        "other-model": new_key(file, "other-model", "--models", "nothing-of-ours"),
        "this-model": new_key(file, "this-model", "--models", f"x,{MODEL}"),
        "thrifty": new_key(file, "thrifty", "--tokens-per-minute", "100"),
        "ops": new_key(file, "ops", "--admin"),
    }
    flags = ("--triton", engine_process.url, "--model-repository", str(repository), "--keys-file", str(file))
    with running_gateway(*flags, "--log-level", "debug", "--workers", "2") as running:
        yield Keyed(running.wait_until_ready(), file, keys)


@pytest.fixture
def keyed(keyed_process: Keyed, engine: MockEngine) -> Keyed:
    """The engine behind it is without a past."""
    return keyed_process


def new_key(file: Path, *arguments: str) -> str:
    made = subprocess.run(
        [sys.executable, "-m", "gateway", "keys", "new", *arguments, "--keys-file", str(file)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return made.stdout.strip()


@pytest.mark.parametrize("path", ROUTES)
def test_every_route_wants_a_key_and_says_so_as_openai_does(path: str, keyed: Keyed) -> None:
    for key in (None, "sk-1", "gw-00000000-" + "A" * 43):
        answer = keyed.send("POST", path, key, ROUTES[path])
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == (
            "invalid_request_error",
            "invalid_api_key",
        )
    assert keyed.send("POST", path, "a", ROUTES[path]).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/nowhere"),
        ("POST", "/v1/embeddings"),
        ("DELETE", "/v1/chat/completions"),
        ("GET", "/admin/instances"),
    ],
)
def test_so_does_everything_else(method: str, path: str, keyed: Keyed) -> None:
    assert keyed.send(method, path, None).status_code == 401


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/docs", "/openapi.json"])
def test_probes_scrapers_and_readers_need_none(path: str, keyed: Keyed) -> None:
    assert keyed.send("GET", path, None).status_code == 200


def test_an_sdk_says_what_is_wrong(keyed: Keyed) -> None:
    def create(key: str) -> Any:
        client = openai.OpenAI(base_url=f"{keyed.gateway.url}/v1", api_key=key, max_retries=0)
        return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a"}], max_tokens=2)

    assert create(keyed.keys["a"]).choices
    with pytest.raises(openai.AuthenticationError):
        create("wrong")
    with pytest.raises(openai.PermissionDeniedError, match="admin routes only"):
        create(keyed.keys["ops"])


def test_nothing_of_a_body_is_read_before_the_key(keyed: Keyed) -> None:
    host, _, port = keyed.gateway.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_a_model_that_a_key_may_not_use_is_to_it_as_one_that_is_not_there(keyed: Keyed, engine: MockEngine) -> None:
    for path, body in ROUTES.items():
        answers = [
            keyed.send("POST", path, "other-model", body | {"model": name}) for name in (MODEL, "nothing-of-ours")
        ]
        assert [answer.status_code for answer in answers] == [404, 404]
        first, second = (answer.json()["error"] for answer in answers)
        assert first["code"] == second["code"] == "model_not_found"
        assert first["message"].replace(MODEL, "nothing-of-ours") == second["message"]
        assert keyed.send("POST", path, "this-model", body).status_code == 200
    assert keyed.send("GET", "/v1/models", "other-model").json()["data"] == []
    assert keyed.send("GET", f"/v1/models/{MODEL}", "other-model").status_code == 404
    assert [entry["id"] for entry in keyed.send("GET", "/v1/models", "this-model").json()["data"]] == [MODEL]


def test_tokens_per_minute_are_those_of_all_workers(keyed: Keyed, engine: MockEngine) -> None:
    body = completion(max_tokens=60, ignore_eos=True)
    # 100 tokens are in the bucket and as many come in a minute; each answer takes 60 and some, the last one on credit.
    begun = time.monotonic()
    answers = [keyed.send("POST", "/v1/completions", "thrifty", body) for _ in range(8)]
    assert answers[0].status_code == 200
    refused = [answer for answer in answers if answer.status_code == 429]
    passed = len(answers) - len(refused)
    assert (passed - 1) * 60 < 100 + (time.monotonic() - begun) * 100 / 60
    for answer in refused:
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert keyed.send("POST", "/v1/completions", "a", body).status_code == 200


def test_a_thousand_guesses_open_nothing(keyed: Keyed, engine: MockEngine) -> None:
    rng = random.Random(3)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    known = keyed.keys["a"]
    with httpx.Client(base_url=keyed.gateway.url, verify=False, timeout=30) as client:
        for number in range(1000):
            secret = "".join(rng.choices(alphabet, k=43))
            place = rng.randrange(12, len(known))
            near = known[:place] + rng.choice(alphabet.replace(known[place], "")) + known[place + 1 :]
            guess = (known[:12] + secret, f"gw-{rng.randrange(16**8):08x}-{known[12:]}", near)[number % 3]
            answer = client.post("/v1/chat/completions", content=b"{", headers={"Authorization": f"Bearer {guess}"})
            assert answer.status_code == 401
    assert engine.requests() == []
    assert keyed.send("POST", "/v1/chat/completions", "a", ROUTES["/v1/chat/completions"]).status_code == 200
    assert keyed.gateway.metric("gateway_refused_total", kind="invalid_api_key") >= 1000


def test_a_key_that_is_made_or_revoked_counts_within_a_moment(keyed: Keyed) -> None:
    body = ROUTES["/v1/completions"]
    key = new_key(keyed.file, "for-a-while")
    wait_for(lambda: keyed.send("POST", "/v1/completions", key, body).status_code == 200)
    assert command.main(["revoke", "for-a-while", "--keys-file", str(keyed.file)]) == 0
    wait_for(lambda: keyed.send("POST", "/v1/completions", key, body).status_code == 401)


def test_no_key_is_shown_anywhere(keyed: Keyed, engine: MockEngine) -> None:
    """Not in an answer, a log line of any level or a metric, wherever a client puts it."""
    key = keyed.keys["a"]
    answers = [
        keyed.send("POST", "/v1/chat/completions", "a", chat(max_tokens=2)),
        keyed.send("POST", "/v1/chat/completions", "a", {"model": 5, "messages": "x", "temperature": "hot"}),
        keyed.send("POST", "/v1/chat/completions", "a", chat(temperature=99)),
        keyed.send("POST", "/v1/chat/completions", key + "x", chat()),
        keyed.send("POST", "/v1/chat/completions", None, chat(), **{"Api-Key": key}),
        keyed.send("GET", "/nowhere", "a"),
        keyed.send("GET", "/v1/models", "a"),
        keyed.send("GET", "/metrics", "a"),
        keyed.send("POST", "/tokenize", "a", {"model": MODEL}),
    ]
    engine.add_fault(error_before="the engine says no")
    answers.append(keyed.send("POST", "/v1/completions", "a", completion()))
    for answer in answers:
        assert key[12:] not in answer.text
        assert key[12:] not in str(answer.headers)
    # Here the client itself puts it where it is shown back, and where a log line names it.
    keyed.send("GET", f"/v1/models/{key}", "a")
    keyed.send("POST", "/v1/completions", "a", completion(), **{"X-Request-Id": key})
    wait_for(lambda: sum("/v1/models/gw-" in line for line in keyed.log_lines()) > 0)
    for line in keyed.log_lines():
        assert key[12:30] not in line
    settings = next(line for line in keyed.log_lines() if "effective settings" in line)
    assert str(keyed.file) in settings


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_a_start_on_every_address_without_keys_is_refused(address: str, repository: Path) -> None:
    start = subprocess.run(
        [sys.executable, "-m", "gateway", "--host", address, "--port", "0", "--model-repository", str(repository)],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert start.returncode == 2
    assert start.stderr.splitlines()[-1].startswith(f"gateway: Other machines could use {address} without a key")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_start_with_a_broken_file_is_refused(workers: str, repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("team: 5\n")
    flags = ("--port", "0", "--model-repository", str(repository), "--keys-file", str(file), "--workers", workers)
    start = subprocess.run(
        [sys.executable, "-m", "gateway", *flags], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert start.returncode == 2
    assert start.stderr.splitlines()[-1].startswith("gateway: The key team in ")


def test_unless_a_flag_says_so(engine_process: MockEngine, repository: Path) -> None:
    flags = ("--triton", engine_process.url, "--model-repository", str(repository))
    with running_gateway(*flags, "--host", "0.0.0.0", "--allow-anonymous") as gateway:
        url = gateway.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/v1/models", verify=False).status_code == 200
