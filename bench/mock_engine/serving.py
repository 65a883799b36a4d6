"""The course of one generate request: from its body to its last response, with the faults that a test asked for.

When a closed connection is noticed is as on a real Triton: never for `generate`, and for `generate_stream` only
once the first response has been sent; then at once by our backend, and by the stock one when its engine next
produces an output.
"""

import asyncio
import itertools
import struct
import time
from collections.abc import Callable
from typing import Any, Protocol

import orjson

from bench.mock_engine.backend import BackendError, Dialect, GenerateRequest, Model
from bench.mock_engine.faults import Fault, Faults
from bench.mock_engine.generation import Delta, generate
from bench.mock_engine.http1 import ConnectionDropped, Response
from bench.mock_engine.inputs import Body
from bench.mock_engine.logprobs import Logprobs, prompt_logprobs
from bench.mock_engine.models import ServedModel
from bench.mock_engine.record import Record

_NOT_ONE_RESPONSE = (
    "generate expects model to produce exactly 1 response, "
    "use generate stream for model that generates various number of responses"
)

Row = dict[str, Any]
"""One response of the model as Triton writes it in JSON."""


class _Cancelled(Exception):
    """The client has gone away and the backend has noticed."""


class Sink(Protocol):
    """Where a request's responses go; how they become HTTP is the endpoint's matter."""

    cancelled: asyncio.Event
    """Set when the backend can see that the client has gone away."""

    async def send(self, row: Row) -> None: ...

    async def fail(self, text: str) -> None:
        """The last response is an error."""

    async def finish(self) -> None: ...


class StreamSink:
    """`generate_stream`: an SSE event per response."""

    def __init__(self, response: Response, close_after_events: int | None) -> None:
        self._response = response
        self._close_after = close_after_events
        self._events = 0
        self.cancelled = asyncio.Event()

    async def send(self, row: Row) -> None:
        await self._event(200, row)

    async def fail(self, text: str) -> None:
        await self._event(400, {"error": text})
        await self._response.end()

    async def finish(self) -> None:
        await self._response.end()

    async def _event(self, status: int, content: Row) -> None:
        if self._events == self._close_after:
            await self._response.drop()
        self._events += 1
        data = b"data: " + orjson.dumps(content, option=orjson.OPT_SORT_KEYS) + b"\n\n"
        if self._response.begun:
            await self._response.chunk(data)
        else:
            # Only now does the request hear of a client that has gone away.
            self.cancelled = self._response.closed
            await self._response.begin(status, "text/event-stream; charset=utf-8", data)
        if self._events == self._close_after:
            await self._response.drop()


class WholeSink:
    """`generate`: one JSON body, which takes exactly one response. That its client has gone away is never noticed."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self._rows: list[Row] = []
        self.cancelled = asyncio.Event()

    async def send(self, row: Row) -> None:
        self._rows.append(row)

    async def fail(self, text: str) -> None:
        if self._rows:
            await self.finish()
        else:
            await self._body(400, {"error": text})

    async def finish(self) -> None:
        await self._body(200, self._rows[0] if len(self._rows) == 1 else {"error": _NOT_ONE_RESPONSE})

    async def _body(self, status: int, content: Row) -> None:
        data = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
        await self._response.begin(status, "application/json", data)
        await self._response.end()


async def serve(
    body: Body,
    response: Response,
    model: ServedModel,
    dialect: Dialect,
    record: Record,
    faults: Faults,
    token_interval: float,
) -> None:
    """Answers a request whose body Triton has accepted. `token_interval` is in seconds, where no fault sets
    another."""
    record.read(body, dialect.inputs)
    fault = faults.take(model.name, str(body.values.get("text_input", [""])[0]), body.request_id or "")
    if sizes := fault.write_sizes():
        response.split_writes(sizes)
    close_after_events: int | None = None
    if fault.close_after is not None:
        close_after_events = fault.close_after.events
        if fault.close_after.bytes is not None:
            response.drop_after(fault.close_after.bytes)
    sink: Sink = (
        StreamSink(response, close_after_events) if record.endpoint == "generate_stream" else WholeSink(response)
    )
    if fault.token_interval_ms is not None:
        token_interval = fault.token_interval_ms / 1000
    assert model.loaded is not None
    call = _Call(body, sink, model.loaded, dialect, record, fault, faults, token_interval)
    model.in_flight += 1
    try:
        await call.run()
        record.ended = "finished"
        await sink.finish()
    except BackendError as error:
        record.ended, record.error = "error", str(error)
        await sink.fail(str(error))
    except _Cancelled:
        record.ended = "cancelled"
        if response.closed_at is not None:
            record.seconds_from_close_to_cancel = time.monotonic() - response.closed_at
    except ConnectionDropped:
        record.ended = "dropped"
        raise
    finally:
        model.in_flight -= 1


class _Call:
    """One request inside the backend and the engine."""

    def __init__(
        self,
        body: Body,
        sink: Sink,
        model: Model,
        dialect: Dialect,
        record: Record,
        fault: Fault,
        faults: Faults,
        token_interval: float,
    ) -> None:
        self._body = body
        self._sink = sink
        self._model = model
        self._dialect = dialect
        self._record = record
        self._fault = fault
        self._cleared = faults.cleared
        self._interval = token_interval
        self._next_token_at = 0.0

    async def run(self) -> None:
        """Raises BackendError, _Cancelled or ConnectionDropped."""
        if self._fault.stall_before:
            await self._stall()
        if self._fault.error_before is not None:
            raise BackendError(self._fault.error_before)
        request = self._dialect.read(self._fault.left_of(self._body.values), self._model)
        self._record.admit(request.prompt_ids)
        row = _Rows(request, self._model, self._body.request_id).row
        if request.send_admission:
            await self._send(row(Delta(logprobs=[] if request.params.token_logprobs else None)))
        await self._answer(request, row)

    async def _answer(self, request: GenerateRequest, row: Callable[[Delta], Row]) -> None:
        sizes = self._fault.response_sizes() or itertools.repeat(request.params.stream_interval)
        size = next(sizes) if request.stream else None
        pending: Delta | None = None
        self._next_token_at = time.monotonic()
        if self._fault.finish_reason_error:
            deltas = iter([Delta(finish_reason="error")])
        else:
            deltas = generate(
                request.prompt_ids,
                request.params,
                self._model.max_model_len,
                self._fault.text,
                thinks_first=request.thinks_first,
            )
        if request.prefix:
            pending = Delta(text=request.prefix, logprobs=[])
        for delta in deltas:
            if self._fault_is_due() and pending is not None and pending.token_ids:
                # What the engine has produced has left by then.
                await self._send(row(pending))
                pending = None
            await self._meet_fault()
            await self._wait_for_token()
            self._record.tokens += len(delta.token_ids)
            if delta.finish_reason == "error" and (text := self._dialect.engine_error(request)):
                raise BackendError(text)
            if pending is None:
                pending = delta
            else:
                pending.extend(delta)
            if delta.finish_reason is not None or len(pending.token_ids) == size:
                await self._send(row(pending))
                pending, size = None, next(sizes)

    def _fault_is_due(self) -> bool:
        fault, tokens = self._fault, self._record.tokens
        return tokens == fault.stall_after or (fault.error_after is not None and tokens == fault.error_after.tokens)

    async def _meet_fault(self) -> None:
        fault, tokens = self._fault, self._record.tokens
        if tokens == fault.stall_after:
            await self._stall()
        if fault.error_after is not None and tokens == fault.error_after.tokens:
            raise BackendError(fault.error_after.error)

    async def _send(self, row: Row) -> None:
        self._record.responses += 1
        await self._sink.send(row)

    async def _wait_for_token(self) -> None:
        self._next_token_at += self._interval
        delay = self._next_token_at - time.monotonic()
        if delay > 0 and self._dialect.sees_close_at_once:
            await _first_of(self._sink.cancelled, within=delay)
        else:
            await asyncio.sleep(max(delay, 0))
        self._check_cancelled()

    async def _stall(self) -> None:
        if self._dialect.sees_close_at_once:
            await _first_of(self._sink.cancelled, self._cleared)
            self._check_cancelled()
        else:
            await self._cleared.wait()
        self._next_token_at = time.monotonic()

    def _check_cancelled(self) -> None:
        if self._sink.cancelled.is_set():
            raise _Cancelled


async def _first_of(*events: asyncio.Event, within: float | None = None) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


class _Rows:
    """The responses of one request as JSON: only the outputs that were asked for."""

    def __init__(self, request: GenerateRequest, model: Model, request_id: str | None) -> None:
        self._request = request
        self._model = model
        self._common: Row = {"model_name": model.name, "model_version": "1"}
        if request_id is not None:
            self._common["id"] = request_id
        outputs: dict[str, Callable[[Delta], Any]] = {
            "finish_reason": lambda delta: delta.finish_reason or "None",
            "cumulative_logprob": lambda delta: _float32(delta.cumulative_logprob),
            "logprobs": lambda delta: _json(delta.logprobs),
            "num_input_tokens": lambda delta: len(request.prompt_ids),
            "num_output_tokens": lambda delta: len(delta.token_ids),
            "prompt_logprobs": lambda delta: _json(self._prompt_logprobs(delta)),
            "token_ids": lambda delta: _json(delta.token_ids),
            "prompt_token_ids": lambda delta: _json(self._prompt_token_ids()),
            "stop_reason": lambda delta: _json(delta.stop_reason),
        }
        self._asked = {name: make for name, make in outputs.items() if name in request.outputs}
        self._prompt_ids_due = True
        self._prompt_logprobs_due = True

    def row(self, delta: Delta) -> Row:
        asked = {name: make(delta) for name, make in self._asked.items()}
        return self._common | {"text_output": delta.text} | asked

    def _prompt_token_ids(self) -> list[int] | None:
        due, self._prompt_ids_due = self._prompt_ids_due, False
        return self._request.prompt_ids if due else None

    def _prompt_logprobs(self, delta: Delta) -> list[Logprobs | None] | None:
        """With the first tokens of the answer."""
        count = self._request.params.prompt_logprobs
        if count is None or not self._prompt_logprobs_due or not delta.token_ids:
            return None
        self._prompt_logprobs_due = False
        return prompt_logprobs(self._request.prompt_ids, count, self._model.tokenizer.decode)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _float32(value: float | None) -> float | None:
    return None if value is None else struct.unpack("f", struct.pack("f", value))[0]
