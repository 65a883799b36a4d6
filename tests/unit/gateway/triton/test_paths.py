"""An endpoint before Tritons that speak batched egress: clients get the same bytes whichever way the tokens come, and a
request whose instance fails before it has said anything goes to another one."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

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
from gateway.settings import BatchedEgress, Settings
from gateway.translate.prompt import ChatTemplate
from gateway.triton.generate import Connections
from tests.unit.gateway.triton.egress_server import CONTRACT, Own, Triton, serving, until

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
ROUTES: dict[str, tuple[Any, dict[str, Any]]] = {
    "chat": (Chat, {"messages": [{"role": "user", "content": "q"}]}),
    "completions": (Completions, {"prompt": "q"}),
}
# What each engine step adds: tokens, text, and why it is the last one.
STEPS: list[tuple[int, str, str | None]] = [
    (1, "Pa", None),
    (4, "ris 日本 🎉\n\ndata: x", None),
    (1, "", None),
    (1, "!", "stop"),
]


class Asked:
    """One request of a client, and what it has got of the answer."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.running: asyncio.Task[None] | None = None

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def body(self) -> bytes:
        """With the answer's identity taken out."""
        body = b"".join(message.get("body", b"") for message in self.sent)
        return re.sub(rb'"id":"[^"]*","object":"([^"]*)","created":\d+', rb'"object":"\1"', body)

    async def ended(self) -> "Asked":
        assert self.running is not None
        async with asyncio.timeout(30):
            await self.running
        return self


class Endpoint:
    def __init__(self, route: GenerateRoute[Any], fields: dict[str, Any]) -> None:
        self._route = route
        self._fields = fields

    def ask(self, **fields: Any) -> Asked:
        asked = Asked()
        request = {"model": "m", **self._fields, **fields}
        received = [{"type": "http.request", "body": json.dumps(request).encode(), "more_body": False}]

        async def receive() -> Any:
            return received.pop() if received else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            asked.sent.append(message)

        scope: Scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        record = Record(scope)
        begin(scope, record)
        noted = naming(record, send)
        asked.running = asyncio.create_task(self._route(scope, receive, noted))
        return asked


@asynccontextmanager
async def endpoint(
    *tritons: Triton, setting: BatchedEgress = "always", route: str = "chat"
) -> AsyncIterator[Endpoint]:
    async with serving(*tritons) as urls:
        desk = Desk(max_in_flight=10, max_waiting=0, stall_timeout=60)
        desk.set_models({"m"})
        desk.set_urls(urls)
        for instance in desk.table.instances.values():
            desk.probed(instance, {"m": CONTRACT}, {})
        front = local_front(desk, 10, lambda url: Connections(url, 60))
        dialect, fields = ROUTES[route]
        models = ServedModels([replace(MODEL, batched_egress=setting)])
        try:
            yield Endpoint(GenerateRoute(dialect(), Settings(), models, front, Checker()), fields)
        finally:
            await front.close()
        assert [instance.in_flight for instance in desk.table.instances.values()] == [0] * len(tritons)


async def _play(triton: Triton, asked: Asked, own: Own, *, batched: bool, is_streamed: bool) -> None:
    """The steps, each when the client has got what came before it: what comes together is written together."""
    tokens, text = 0, ""
    for number, (new_tokens, new_text, reason) in enumerate(STEPS):
        before = len(asked.sent)
        if batched:
            row = [own.number, tokens, len(text), new_tokens, new_text]
            triton.subscription.message(number + 1, [*row, reason] if reason else row)
        else:
            counts = {"num_input_tokens": 3, "num_output_tokens": new_tokens}
            own.event(text_output=new_text, finish_reason=reason or "None", **counts)
        tokens, text = tokens + new_tokens, text + new_text
        if is_streamed and new_text:
            await until(lambda: len(asked.sent) > before, "the chunk")  # noqa: B023
    if batched:
        own.final(tokens, len(text))
    else:
        own.end()


async def _answer(setting: BatchedEgress, route: str, *, stream: bool) -> tuple[int, bytes, int]:
    """Status, body, and in how many writes."""
    triton = Triton()
    options = {"include_usage": True, "continuous_usage_stats": True}
    fields = {"stream": True, "stream_options": options} if stream else {}
    async with endpoint(triton, setting=setting, route=route) as it:
        asked = it.ask(**fields)
        await until(lambda: triton.own or triton.plain)
        own = [*triton.own.values(), *triton.plain][0]
        own.admit()
        if stream:
            await until(lambda: asked.sent, "the head")
        if stream and route == "chat":
            await until(lambda: len(asked.sent) > 1, "the role")
        await _play(triton, asked, own, batched=setting == "always", is_streamed=stream)
        await asked.ended()
    return asked.status, asked.body, len(asked.sent)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_client_gets_the_same_bytes_in_as_many_writes(stream: bool, route: str) -> None:
    own = await _answer("never", route, stream=stream)
    assert own[0] == 200
    assert own == await _answer("always", route, stream=stream)


async def test_choices_come_by_one_subscription() -> None:
    triton = Triton()
    async with endpoint(triton) as it:
        asked = it.ask(n=3, stream=True)
        await until(lambda: len(triton.own) == 3)
        for own in triton.own.values():
            own.admit()
        await until(lambda: asked.sent, "the head")
        for number in triton.own:
            triton.subscription.message(number, [number, 0, 0, 1, f"text {number}", "stop"])
            triton.own[number].final(1, 6)
        await asked.ended()
        assert len(triton.subscriptions) == 1
    texts = [json.loads(event)["choices"][0] for event in re.findall(rb"data: (\{.*\})\n", asked.body)]
    contents = {choice["index"]: choice["delta"]["content"] for choice in texts if choice["delta"].get("content")}
    assert sorted(contents.values()) == ["text 1", "text 2", "text 3"]
    assert sum(choice["finish_reason"] == "stop" for choice in texts) == 3


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("when", ["before the admission", "before a token"])
async def test_a_request_whose_instance_fails_goes_to_another_one(when: str, stream: bool) -> None:
    tritons = [Triton(), Triton()]
    async with endpoint(*tritons) as it:
        asked = it.ask(stream=stream)
        await until(lambda: any(triton.own for triton in tritons))
        failing, other = sorted(tritons, key=lambda triton: not triton.own)
        if when == "before a token":
            failing.own[1].admit()
        failing.own[1].break_off()
        await until(lambda: other.own)
        other.own[1].admit()
        other.subscription.message(1, [1, 0, 0, 1, "well", "stop"])
        other.own[1].final(1, 4)
        await asked.ended()
    assert asked.status == 200
    assert b"well" in asked.body
    assert b"error" not in asked.body


async def test_a_part_that_is_lost_is_an_error_for_its_client() -> None:
    triton = Triton()
    async with endpoint(triton) as it:
        asked = it.ask(stream=True)
        await until(lambda: triton.own)
        triton.own[1].admit()
        await until(lambda: asked.sent, "the head")
        triton.subscription.message(1, [1, 0, 0, 1, "Pa"], [1, 0, 0, 0, "", "lost"])
        await asked.ended()
    *_, last, done, _ = asked.body.split(b"\n\n")
    assert done == b"data: [DONE]"
    assert json.loads(last.removeprefix(b"data: "))["error"]["message"].startswith("A part of the answer was lost")
    assert b"Pa" in asked.body
