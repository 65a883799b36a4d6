"""`python -m bench parity` between two servers that speak from a script: what it calls a difference, and exit codes."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.parity.shape import CHAT, Group

Answer = dict[str, Any]
Alter = Callable[[Answer, Answer], None]
"""Changes an answer in place, given the request."""

TOKENS = ["One", " two", " three", " four", " five", " six", " seven", " eight"]
USAGE = {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
# In how many tokens an event of a stream comes.
WHOLE_TOKENS, PAIRS = 1, 2


def chat_answer() -> Answer:
    entries = [{"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": []} for token in TOKENS]
    message = {"role": "assistant", "content": "".join(TOKENS), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": {"content": entries}, "finish_reason": "length"}
    choice |= {"token_ids": list(range(8))}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}


def text_answer() -> Answer:
    logprobs = {"tokens": TOKENS, "token_logprobs": [-0.5] * 8, "top_logprobs": [{}] * 8, "text_offset": list(range(8))}
    choice = {"index": 0, "text": "".join(TOKENS), "logprobs": logprobs, "finish_reason": "length"}
    choice |= {"token_ids": list(range(8))}
    return {"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}


def events(answer: Answer, size: int) -> str:
    """The answer as a stream, `size` tokens an event."""
    head = {name: answer[name] for name in ("id", "created", "model")}
    head["object"] = answer["object"].replace("completion", "completion.chunk") if "chat" in answer["object"] else "x"
    lines: list[Answer] = []
    whole = answer["choices"][0]
    for begin in range(0, 8, size):
        cut = slice(begin, begin + size)
        logprobs = {name: values[cut] for name, values in whole["logprobs"].items()}
        part: Answer = {"index": 0, "logprobs": logprobs, "token_ids": whole["token_ids"][cut], "finish_reason": None}
        text = "".join(TOKENS[cut])
        if "message" in whole:
            part["delta"] = {"content": text} | ({} if begin else {"role": whole["message"]["role"]})
        else:
            part["text"] = text
        lines.append(head | {"choices": [part], "usage": None})
    lines[-1]["choices"][0]["finish_reason"] = whole["finish_reason"]
    if "usage" in answer:
        lines.append(head | {"choices": [], "usage": answer["usage"]})
    return "".join(f"data: {json.dumps(line)}\n\n" for line in lines) + "data: [DONE]\n\n"


class Speaker(BaseHTTPRequestHandler):
    """What both kinds of server have in common."""

    key: str | None = None
    models: tuple[str, ...] = ("m",)

    def do_GET(self) -> None:
        if self.key is not None and self.headers["authorization"] != f"Bearer {self.key}":
            self.answer(401, json.dumps({"error": {"message": "Who are you?"}}))
            return
        self.answer(200, json.dumps({"data": [{"id": name} for name in self.models]}))

    def answer(self, status: int, text: str, content_type: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def speaking(
    size: int = WHOLE_TOKENS,
    alter: Alter = lambda answer, request: None,
    key: str | None = None,
    models: tuple[str, ...] = ("m",),
) -> Iterator[str]:
    """A server that answers everything with the same, and its URL."""

    class Handler(Speaker):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if not body.startswith(b"{") or len(body) < 3:
                error = {"message": "What is that?", "type": "invalid_request_error", "code": None}
                alter({"choices": [error]}, {})
                self.answer(400, json.dumps({"error": error}))
                return
            request = json.loads(body)
            content_type = "application/json"
            if self.path == "/tokenize":
                text = json.dumps({"tokens": [1, 2, 3], "max_model_len": 20})
            else:
                answer = deepcopy(chat_answer() if self.path == CHAT else text_answer())
                alter(answer, request)
                text = json.dumps(answer)
                if request.get("stream"):
                    content_type, text = "text/event-stream; charset=utf-8", events(answer, size)
            self.answer(200, text, content_type)

    Handler.key, Handler.models = key, models
    with serving(Handler) as url:
        yield url


def compared(a: str, b: str, *options: str) -> int:
    return main(["parity", "--url", a, "--against", b, *options])


def rows(shown: str) -> list[str]:
    """The lines of the requests."""
    return [line for line in shown.splitlines() if re.match(r"(same|explained|DIFFERENT) +\d", line)]


def test_the_same_answers_however_their_streams_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    with speaking(PAIRS) as a, speaking(WHOLE_TOKENS) as b:
        assert compared(a, b) == 0
    shown = capsys.readouterr().out
    found = rows(shown)
    assert all(row.startswith("same ") for row in found)
    assert len(found) > 50
    assert shown.splitlines()[-1] == f"{len(found)} requests: {len(found)} the same, 0 explained, 0 DIFFERENT"
    assert {group for group in Group if re.search(rf"^{group} +\d+ +\d+ +0 +0$", shown, re.MULTILINE)} == set(Group)


def finish_reason(answer: Answer, request: Answer) -> None:
    answer["choices"][0]["finish_reason"] = "stop"


def one_token_id(answer: Answer, request: Answer) -> None:
    if "token_ids" in answer["choices"][0]:
        answer["choices"][0]["token_ids"][3] = 99


def logprob(answer: Answer, request: Answer) -> None:
    if "message" in answer["choices"][0] and "logprobs" in answer["choices"][0]:
        answer["choices"][0]["logprobs"]["content"][2]["logprob"] -= 0.01


def no_usage(answer: Answer, request: Answer) -> None:
    if request.get("stream"):
        del answer["usage"]


@pytest.mark.parametrize(
    ("alter", "place"),
    [
        (finish_reason, "choices[0].finish_reason: A 'stop', B 'length'"),
        (one_token_id, "choices[0].token_ids[3]: A 99, B 3"),
        (logprob, "choices[0].logprobs.content[2].logprob: A -0.51, B -0.5"),
        (no_usage, "usage: A absent, B {'prompt_tokens': 5, "),
        (no_usage, "stream.usage: A 'none', B 'in an event of its own, the last'"),
    ],
)
def test_a_difference_is_named_and_is_exit_code_1(alter: Alter, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    with speaking(alter=alter) as a, speaking() as b:
        assert compared(a, b, "--only", "streaming") == 1
    shown = capsys.readouterr().out
    assert f"           {place}" in shown
    # Where it may be rounding, only what stays different counts.
    row = f"\nDIFFERENT  200  {'chat: stream with usage':<46} asked 3 times".rstrip()
    assert (row if alter is logprob else "\nDIFFERENT  200  chat: stream with usage\n") in shown


def test_what_is_not_different_when_it_is_asked_again_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    asked: set[str] = set()

    def first(alter: Alter) -> Alter:
        def altered(answer: Answer, request: Answer) -> None:
            if (key := json.dumps(request)) not in asked:
                asked.add(key)
                alter(answer, request)

        return altered

    with speaking(alter=first(logprob)) as a, speaking() as b:
        assert compared(a, b) == 0
    assert "asked 2 times" in capsys.readouterr().out
    asked.clear()
    # Text that differs once is a fault.
    with speaking(alter=first(finish_reason)) as a, speaking() as b:
        assert compared(a, b) == 1


def error_type(answer: Answer, request: Answer) -> None:
    if not request:
        answer["choices"][0]["type"] = "BadRequestError"


def test_errors_are_compared_as_clients_read_them(capsys: pytest.CaptureFixture[str]) -> None:
    with speaking() as right, speaking(alter=error_type) as wrong:
        assert compared(right, wrong, "--only", "errors") == 0
        assert (
            "\nexplained  400  chat: no JSON                                  error.type\n" in capsys.readouterr().out
        )
        assert compared(wrong, right, "--only", "errors") == 1
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("DIFFERENT  400  chat: no JSON")
    assert lines[at + 1].strip() == "error.type: A 'BadRequestError', B 'invalid_request_error'"
    assert lines[at + 2].strip().startswith("B is right: A word for programs; ")


def test_what_was_found_is_written_for_programs(tmp_path: Path) -> None:
    with speaking(alter=no_usage) as a, speaking() as b:
        assert compared(a, b, "--only", "streaming", "--only", "sampling", "--json", str(tmp_path / "found")) == 1
    found = json.loads((tmp_path / "found").read_text())
    assert (found["a"]["url"], found["b"]["model"]) == (a, "m")
    assert {request["group"] for request in found["requests"]} == {"streaming", "sampling"}
    assert sum(found["counts"].values()) == len(found["requests"])
    (stream,) = [request for request in found["requests"] if request["name"] == "chat: stream with usage"]
    assert (stream["verdict"], stream["a"]["status"], stream["body"]["stream"]) == ("different", 200, True)
    places = {difference["place"]: difference for difference in stream["differences"]}
    assert "a" not in places["usage"]
    assert places["usage"]["b"] == USAGE


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence that a comparison which cannot be made ends with."""
    shown = capsys.readouterr().err
    assert shown.startswith("bench parity: ")
    assert shown.count("\n") == 1
    return shown


@pytest.mark.parametrize("missing", ["a", "b"])
def test_a_server_that_does_not_answer_is_one_sentence_and_exit_code_2(
    missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = "http://127.0.0.1:1"
    with speaking() as there:
        a, b = (nobody, there) if missing == "a" else (there, nobody)
        assert compared(a, b) == 2
    assert said(capsys).startswith(f"bench parity: {nobody} does not answer: ")


def test_a_model_that_is_not_there_is_one_sentence_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with speaking() as a, speaking(models=("x", "y")) as b:
        assert compared(a, b, "--model", "m") == 2
        assert said(capsys) == f"bench parity: {b} does not serve 'm'; it serves 'x', 'y'.\n"
        assert compared(a, b) == 2
        assert said(capsys) == f"bench parity: {b} serves 'x', 'y'; say which is meant.\n"
        assert compared(a, b, "--model-against", "x", "--only", "tools") == 0


def test_keys_come_from_options_or_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with speaking(key="open") as a, speaking(key="sesame") as b:
        assert compared(a, b) == 2
        assert said(capsys) == (f"bench parity: {a} answered 401 to /v1/models; give it an API key that it takes.\n")
        monkeypatch.setenv("OPENAI_API_KEY", "open")
        assert compared(a, b, "--only", "tools") == 2
        assert said(capsys).startswith(f"bench parity: {b} answered 401")
        assert compared(a, b, "--only", "tools", "--api-key-against", "sesame") == 0


def test_what_is_no_such_server_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    class Nothing(Speaker):
        def do_GET(self) -> None:
            self.answer(404, "Not here")

    with serving(Nothing) as a, speaking() as b:
        assert compared(a, b) == 2
    assert "is no server of OpenAI's API" in said(capsys)


class Plain(Speaker):
    """A server with nothing but chat: no log probabilities, no token ids, no text completions."""

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["content-length"]))
        if self.path != CHAT or len(sent) < 3:
            self.answer(404, "Not here")
            return
        answer = chat_answer()
        for name in ("logprobs", "token_ids"):
            del answer["choices"][0][name]
        self.answer(200, json.dumps(answer))


def test_what_a_server_has_not_is_not_asked_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Plain) as a, serving(Plain) as b:
        assert compared(a, f"{b}/v1/") == 0
    shown = capsys.readouterr().out
    assert "Not asked: text completions, since the server has none." in shown
    assert "Not asked: requests with token ids, since" in shown
    assert "Not asked: requests at the limit of the context, since" in shown
    assert "chat: logprobs" in shown
    assert "  text: " not in shown


def test_a_group_that_there_is_not_names_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["parity", "--url", "http://127.0.0.1:1", "--against", "http://127.0.0.1:1", "--only", "foo"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"argument --only: 'foo' is none of the groups: {', '.join(Group)}" in said
