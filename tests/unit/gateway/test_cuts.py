"""Any cut of the upstream's bytes gives the same client bytes: the whole endpoint, without a network.

A fake transport hands the scripted bytes to the real connection in pieces; everything behind it is the gateway's own.
With several choices, which come in any order, the same holds for what the client gets of each.
"""

import asyncio
import itertools
import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.chat import Chat
from gateway.api.completions import Completions
from gateway.api.generate import GenerateRoute
from gateway.api.http import Scope
from gateway.checker import Checker
from gateway.desk.desk import Desk
from gateway.desk.local import local_front
from gateway.models import ServedModel, ServedModels
from gateway.observe.record import Record, begin, naming
from gateway.output.parsers import OutputFormat
from gateway.settings import Settings
from gateway.translate.prompt import ChatTemplate
from gateway.triton.contract import Backend, ModelContract
from gateway.triton.generate import Connections, _Connection


def event(**response: Any) -> bytes:
    defaults = {"finish_reason": "None", "num_input_tokens": 3, "num_output_tokens": 1}
    return b"data: " + json.dumps(defaults | response, ensure_ascii=False).encode() + b"\n\n"


ADMISSION = event(text_output="", num_output_tokens=0)
GOOD = [
    ADMISSION,
    event(text_output="Pa"),
    event(text_output="ris 日本 🎉\n\ndata: x", num_output_tokens=4),
    event(text_output=""),
    event(text_output="!", finish_reason="stop"),
]
FAILING = [*GOOD[:3], b'data: {"error":"INTERNAL: it broke"}\n\n']
UNFINISHED = GOOD[:3]
ABORTED = [*GOOD[:3], event(text_output="", finish_reason="abort")]
NONSENSE = [*GOOD[:2], b"data: <html>\n\n", GOOD[-1]]
REFUSED = [b'data: {"error":"INVALID_ARG sampling_parameters.seed: no."}\n\n']


def response(events: list[bytes], chunk_cuts: Iterable[int]) -> bytes:
    status = b"400 Bad Request" if events is REFUSED else b"200 OK"
    body = b"".join(events)
    places = [0, *sorted(c % (len(body) + 1) for c in chunk_cuts), len(body)]
    chunks = [body[a:b] for a, b in itertools.pairwise(places) if b > a]
    coded = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks)
    return b"HTTP/1.1 " + status + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + coded + b"0\r\n\r\n"


class ScriptedTransport(asyncio.Transport):
    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__()
        self._pieces = pieces
        self.protocol: _Connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._next()

    def _next(self) -> None:
        if self._pieces:
            self.protocol.data_received(self._pieces.pop(0))
            asyncio.get_running_loop().call_soon(self._next)

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self._pieces.clear()

    def pause_reading(self) -> None:
        raise AssertionError("these answers are too short for that")


class ScriptedConnections(Connections):
    """`upstreams` holds the pieces of one connection each."""

    def __init__(self, upstreams: list[list[bytes]]) -> None:
        super().__init__("http://scripted:1", 1)
        self._transports = [ScriptedTransport(pieces) for pieces in upstreams]

    async def connect(self) -> _Connection:
        connection = _Connection(self.forget)
        transport = self._transports.pop(0)
        transport.protocol = connection
        connection.connection_made(transport)
        return connection


MODEL = ServedModel(
    names=("m",),
    triton_model="m",
    template=ChatTemplate("{{ messages[0].content }}", {}),
    no_chat="",
    tokenizer=None,
    no_tokenizer="",
    grammar_backend="guidance",
    max_model_len=100,
    trained_len=None,
    defaults={},
    added_bos="",
    output=OutputFormat(None, None),
    tool_structural_tag=False,
)


SETTINGS = Settings()
ROUTES: dict[str, tuple[Any, dict[str, Any]]] = {
    "chat": (Chat, {"messages": [{"role": "user", "content": "q"}]}),
    "completions": (Completions, {"prompt": "q"}),
}


def cut(raw: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = [0, *sorted(c % (len(raw) + 1) for c in cuts), len(raw)]
    return [raw[a:b] for a, b in itertools.pairwise(places) if b > a]


async def answer(route: str, upstreams: list[list[bytes]], *, stream: bool) -> tuple[int, bytes]:
    """Status and body, with the answer's identity taken out. `upstreams` are the pieces of each choice's upstream."""
    desk = Desk(max_in_flight=10, max_waiting=0, stall_timeout=60)
    desk.set_models({"m"})
    desk.set_urls(["http://scripted:1"])
    (instance,) = desk.table.instances.values()
    desk.probed(instance, {"m": ModelContract(Backend.OURS, frozenset())}, {})
    front = local_front(desk, 10, lambda _: ScriptedConnections(upstreams))
    dialect, fields = ROUTES[route]
    endpoint = GenerateRoute(dialect(), SETTINGS, ServedModels([MODEL]), front, Checker())
    request = {"model": "m", "stream": stream, "n": len(upstreams), **fields}
    if stream:
        request["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    received = [{"type": "http.request", "body": json.dumps(request).encode(), "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return received.pop() if received else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    record = Record(scope)
    begin(scope, record)
    noted = naming(record, send)
    await endpoint(scope, receive, noted)
    body = b"".join(message.get("body", b"") for message in sent)
    assert instance.in_flight == 0
    return sent[0]["status"], re.sub(rb'"id":"[^"]*","object":"([^"]*)","created":\d+', rb'"object":"\1"', body)


def chunks_of(body: bytes) -> list[dict[str, Any]]:
    *events, done, rest = body.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "events",
    [GOOD, FAILING, UNFINISHED, ABORTED, NONSENSE, REFUSED],
    ids=["good", "failing", "unfinished", "aborted", "nonsense", "refused"],
)
def test_any_cut_gives_the_same_client_bytes(events: list[bytes], stream: bool, route: str) -> None:
    expected = asyncio.run(answer(route, [[response(events, [])]], stream=stream))

    @given(st.lists(st.integers(0, 10_000), max_size=10), st.lists(st.integers(0, 10_000), max_size=20))
    def check(chunk_cuts: list[int], cuts: list[int]) -> None:
        pieces = cut(response(events, chunk_cuts), cuts)
        assert asyncio.run(answer(route, [pieces], stream=stream)) == expected

    check()
    raw = response(events, [])
    assert asyncio.run(answer(route, [cut(raw, range(len(raw)))], stream=stream)) == expected


OTHER = [
    ADMISSION,
    event(text_output="Lon"),
    event(text_output="don\u2028"),
    event(text_output=""),
    event(text_output="?", finish_reason="length"),
]
NUMBERS = st.lists(st.integers(0, 10_000), max_size=12)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "second",
    [OTHER, FAILING, UNFINISHED, ABORTED, NONSENSE],
    ids=["good", "failing", "unfinished", "aborted", "nonsense"],
)
def test_any_cut_gives_each_choice_the_same(second: list[bytes], stream: bool, route: str) -> None:
    @settings(max_examples=50)
    @given(NUMBERS, NUMBERS)
    def check(first_cuts: list[int], second_cuts: list[int]) -> None:
        upstreams = [cut(response(GOOD, []), first_cuts), cut(response(second, []), second_cuts)]
        status, body = asyncio.run(answer(route, upstreams, stream=stream))
        if stream:
            assert status == 200
            check_stream(chunks_of(body), second)
            return
        assert status == (200 if second is OTHER else 503 if second in (UNFINISHED, ABORTED) else 500)
        if second is OTHER:
            choices = json.loads(body)["choices"]
            texts = [choice["text"] if route == "completions" else choice["message"]["content"] for choice in choices]
            assert texts == ["Paris 日本 🎉\n\ndata: x!", "London\u2028?"]
        else:
            assert json.loads(body)["error"]["message"].startswith("Choice 1: ")

    check()


def check_stream(chunks: list[dict[str, Any]], second: list[bytes]) -> None:
    texts: list[list[str]] = [[], []]
    reasons: list[list[str]] = [[], []]
    for chunk in chunks:
        for choice in chunk.get("choices", ()):
            texts[choice["index"]].append(choice.get("text") or choice.get("delta", {}).get("content") or "")
            if choice["finish_reason"] is not None:
                reasons[choice["index"]].append(choice["finish_reason"])
    of_first, of_second = "".join(texts[0]), "".join(texts[1])
    if second is OTHER:
        assert (of_first, of_second) == ("Paris 日本 🎉\n\ndata: x!", "London\u2028?")
        assert reasons == [["stop"], ["length"]]
        assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 7 + 4, "total_tokens": 14}
        return
    # All that the failing choice said, and the beginning of what the other did; then the error, and nothing more.
    assert of_second == ("Pa" if second is NONSENSE else "Paris 日本 🎉\n\ndata: x")
    assert "Paris 日本 🎉\n\ndata: x!".startswith(of_first)
    assert reasons[1] == []
    assert ["error" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["error"]["message"].startswith("Choice 1: ")


def test_what_the_client_gets() -> None:
    def got(events: list[bytes], *, stream: bool) -> tuple[int, bytes]:
        return asyncio.run(answer("chat", [[response(events, [])]], stream=stream))

    status, body = got(GOOD, stream=True)
    assert status == 200
    chunks = chunks_of(body)
    texts = [c["choices"][0]["delta"].get("content") for c in chunks if c["choices"]]
    assert texts == ["", "Pa", "ris 日本 🎉\n\ndata: x", "!", None]
    assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}

    for broken in (FAILING, UNFINISHED, ABORTED, NONSENSE):
        status, body = got(broken, stream=True)
        assert status == 200
        assert "error" in chunks_of(body)[-1]
        status, body = got(broken, stream=False)
        assert status in (500, 503)
        assert b"Pa" not in body

    assert got(REFUSED, stream=True)[0] == 400
