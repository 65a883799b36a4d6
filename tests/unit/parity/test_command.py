"""`python -m bench.parity` between two servers that speak from a script: what it calls a difference, and exit codes."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bench.parity.__main__ import main
from bench.parity.shapes import CHAT

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


@contextmanager
def speaking(size: int = WHOLE_TOKENS, alter: Alter = lambda answer, request: None) -> Iterator[str]:
    """A server that answers everything with the same, and its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            content_type = "application/json"
            if self.path == "/tokenize":
                text = json.dumps({"tokens": [1, 2, 3], "max_model_len": 20})
            else:
                answer = deepcopy(chat_answer() if self.path == CHAT else text_answer())
                alter(answer, request)
                text = json.dumps(answer)
                if request.get("stream"):
                    content_type, text = "text/event-stream; charset=utf-8", events(answer, size)
            self.send_response(200)
            self.send_header("content-type", content_type)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def compared(gateway: str, vllm: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["parity", "--gateway", gateway, "--vllm", vllm, "--model", "m"])
    return main()


def test_the_same_answers_however_their_streams_are_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with speaking(PAIRS) as gateway, speaking(WHOLE_TOKENS) as vllm:
        assert compared(gateway, vllm, monkeypatch) == 0
    rows = capsys.readouterr().out.splitlines()
    assert all(row.startswith("same ") for row in rows[:-1])
    assert len(rows) > 50
    assert rows[-1] == f"{len(rows) - 1} requests: {len(rows) - 1} the same, 0 explained, 0 DIFFERENT"


def finish_reason(answer: Answer, request: Answer) -> None:
    answer["choices"][0]["finish_reason"] = "stop"


def one_token_id(answer: Answer, request: Answer) -> None:
    answer["choices"][0]["token_ids"][3] = 99


def logprob(answer: Answer, request: Answer) -> None:
    if "message" in answer["choices"][0]:
        answer["choices"][0]["logprobs"]["content"][2]["logprob"] -= 0.01


def no_usage(answer: Answer, request: Answer) -> None:
    if request.get("stream"):
        del answer["usage"]


@pytest.mark.parametrize(
    ("alter", "place"),
    [
        (finish_reason, "choices[0].finish_reason: gateway 'stop', vLLM 'length'"),
        (one_token_id, "choices[0].token_ids[3]: gateway 99, vLLM 3"),
        (logprob, "choices[0].logprobs.content[2].logprob: gateway -0.51, vLLM -0.5"),
        (no_usage, "usage: gateway absent, vLLM {'prompt_tokens': 5, "),
    ],
)
def test_a_difference_is_named_and_is_exit_code_1(
    alter: Alter, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with speaking(alter=alter) as gateway, speaking() as vllm:
        assert compared(gateway, vllm, monkeypatch) == 1
    shown = capsys.readouterr().out
    assert f"           {place}" in shown
    # Where it may be rounding, only what stays different counts.
    row = f"\nDIFFERENT  200  {'chat: stream with usage':<46} asked 3 times".rstrip()
    assert (row if alter is logprob else "\nDIFFERENT  200  chat: stream with usage\n") in shown


def test_what_is_not_different_when_it_is_asked_again_is_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: set[str] = set()

    def first(alter: Alter) -> Alter:
        def altered(answer: Answer, request: Answer) -> None:
            if (key := json.dumps(request)) not in asked:
                asked.add(key)
                alter(answer, request)

        return altered

    with speaking(alter=first(logprob)) as gateway, speaking() as vllm:
        assert compared(gateway, vllm, monkeypatch) == 0
    assert "asked 2 times" in capsys.readouterr().out
    asked.clear()
    # Text that differs once is a fault.
    with speaking(alter=first(finish_reason)) as gateway, speaking() as vllm:
        assert compared(gateway, vllm, monkeypatch) == 1


@pytest.mark.parametrize("missing", ["gateway", "vllm"])
def test_a_server_that_does_not_answer_is_one_sentence_and_exit_code_2(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = "http://127.0.0.1:1"
    with speaking() as there:
        gateway, vllm = (nobody, there) if missing == "gateway" else (there, nobody)
        assert compared(gateway, vllm, monkeypatch) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"bench.parity: {nobody} does not answer: ")
    assert said.count("\n") == 1
