"""Any cut of the upstream's bytes gives the same client bytes: the whole endpoint, without a network.

A fake transport hands the scripted bytes to the real connection in pieces; everything behind it is the gateway's own.
"""

import asyncio
import itertools
import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.chat import Chat
from gateway.api.generate import GenerateRoute
from gateway.api.in_flight import InFlight
from gateway.checker import Checker
from gateway.models import ServedModel
from gateway.routing.instances import Instance
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
    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__("http://scripted:1", 1)
        self._transport = ScriptedTransport(pieces)

    async def connect(self) -> _Connection:
        connection = _Connection(self.forget)
        self._transport.protocol = connection
        connection.connection_made(self._transport)
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
)


async def answer(raw: bytes, cuts: Iterable[int], *, stream: bool) -> tuple[int, bytes]:
    """Status and body, with the answer's identity taken out."""
    places = [0, *sorted(c % (len(raw) + 1) for c in cuts), len(raw)]
    pieces = [raw[a:b] for a, b in itertools.pairwise(places) if b > a]
    instance = Instance("i", ScriptedConnections(pieces), {"m": ModelContract(Backend.OURS, frozenset())})
    endpoint = GenerateRoute(Chat(), Settings(), {"m": MODEL}, [instance], Checker(), InFlight(10, [MODEL]))
    request = {"model": "m", "messages": [{"role": "user", "content": "q"}], "stream": stream}
    if stream:
        request["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    received = [{"type": "http.request", "body": json.dumps(request).encode(), "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return received.pop() if received else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await endpoint({"type": "http", "headers": []}, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    assert instance.in_flight == 0
    return sent[0]["status"], re.sub(rb'"id":"[^"]*","object":"([^"]*)","created":\d+', rb'"object":"\1"', body)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "events",
    [GOOD, FAILING, UNFINISHED, NONSENSE, REFUSED],
    ids=["good", "failing", "unfinished", "nonsense", "refused"],
)
def test_any_cut_gives_the_same_client_bytes(events: list[bytes], stream: bool) -> None:
    expected = asyncio.run(answer(response(events, []), [], stream=stream))

    @given(st.lists(st.integers(0, 10_000), max_size=10), st.lists(st.integers(0, 10_000), max_size=20))
    def check(chunk_cuts: list[int], cuts: list[int]) -> None:
        assert asyncio.run(answer(response(events, chunk_cuts), cuts, stream=stream)) == expected

    check()
    raw = response(events, [])
    assert asyncio.run(answer(raw, range(len(raw)), stream=stream)) == expected


def test_what_the_client_gets() -> None:
    status, body = asyncio.run(answer(response(GOOD, []), [], stream=True))
    assert status == 200
    chunks = [json.loads(line[6:]) for line in body.decode().split("\n\n")[:-2]]
    texts = [c["choices"][0]["delta"].get("content") for c in chunks if c["choices"]]
    assert texts == ["", "Pa", "ris 日本 🎉\n\ndata: x", "!", None]
    assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
    assert body.endswith(b"data: [DONE]\n\n")

    for broken in (FAILING, UNFINISHED, NONSENSE):
        status, body = asyncio.run(answer(response(broken, []), [], stream=True))
        assert status == 200
        assert b'{"error":' in body
        assert body.endswith(b"data: [DONE]\n\n")
        status, body = asyncio.run(answer(response(broken, []), [], stream=False))
        assert status in (500, 503)
        assert b"Pa" not in body

    assert asyncio.run(answer(response(REFUSED, []), [], stream=True))[0] == 400
