"""Requests of known forms, from the bytes of the client's socket to those of Triton's without a task.

Everything up to the first byte to Triton is done at once when the request has come. The rest of a stream is the native
relay's, where that can be, to the end or up to what it does not understand; else, everything is done as Triton's bytes
come. What comes by a subscription, and whatever goes wrong at an instance, goes on as a task, as every other request
does (`gateway.api.generate`).
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gateway.access.authentication import Access
from gateway.api.forms import Forms, Known
from gateway.api.generate import DEADLINE_GRACE_S, Begun, Course, Form, GenerateRoute, bug
from gateway.api.http import (
    JSON,
    ClientGone,
    Header,
    Receive,
    Scope,
    Send,
    error_headers,
)
from gateway.api.relay import Errand, Passage, Relay
from gateway.desk.front import Front, Lease
from gateway.models import ServedModels
from gateway.new_id import new_id
from gateway.observe.record import CLIENT_GONE, Record, naming
from gateway.observe.requests import Requests
from gateway.openai import sse
from gateway.openai.errors import ApiError, forget_where
from gateway.openai.schema import ChatRequest
from gateway.output.answer import Answer, usage_of
from gateway.triton.contract import Delta
from gateway.triton.failure import InstanceFailure
from gateway.triton.generate import BrokenConnection
from gateway.triton.generation import Generation, unreachable

if TYPE_CHECKING:
    from gateway_relay import Outcome

ChatForm = Form[ChatRequest]

_NOTHING = Delta("", None, 0, 0)


class Exchange(Protocol):
    """A request on its connection, for which one answer is due: by `reply`, by `begin`, `write` and `end`, or by an
    application that `serve` runs, which may go on with an answer that has begun.

    `loop` is where it runs; `client` the transport that streams may be written to, if any. `on_gone` is called when the
    client goes away, `on_ready` when it reads on after it was `is_held`, `on_more` when more comes of it.
    """

    loop: asyncio.AbstractEventLoop
    client: asyncio.Transport | None
    on_gone: Callable[[], None] | None
    on_ready: Callable[[], None] | None
    on_more: Callable[[], None] | None

    @property
    def is_held(self) -> bool:
        """Whether the client does not read what was written."""

    def reply(self, status: int, headers: Iterable[Header], body: bytes) -> None: ...

    def head(self, lines: bytes) -> bytes:
        """Of a stream, with these `lines`."""

    def begin(self, head: bytes = b"") -> None:
        """A stream, whose `head` goes with the first `write`, unless it has been sent elsewhere."""

    def write(self, data: bytes) -> None: ...

    def end(self, data: bytes) -> None:
        """With the last bytes."""

    def done(self) -> None:
        """All of a stream has been sent elsewhere."""

    def abort(self) -> None:
        """Close the connection without an end."""

    def serve(self, application: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None: ...


class Direct:
    """Of chat completions; `forms` are those that `route` has learned."""

    def __init__(
        self,
        route: GenerateRoute[ChatRequest],
        forms: Forms[ChatForm],
        request_timeout: float,
        models: ServedModels,
        front: Front,
        access: Access,
        requests: Requests,
        relay: Relay,
    ) -> None:
        self.route = route
        self.relay = relay
        self.front = front
        self.requests = requests
        self.request_timeout = request_timeout
        self.recognize = forms.recognize
        self.deadlines = _Deadlines()
        self._forms = forms
        self._models = models
        self._access = access

    def answer(self, exchange: Callable[[], Exchange], known: Known[ChatForm]) -> bool:
        """Take a request over, and its `exchange`. False where it is to go the usual way: nothing was done then."""
        scope = {"method": "POST", "path": self._forms.path, "headers": known.headers}
        form = known.form
        model = form.model
        try:
            key = self._access.authenticate(scope)
        except ApiError:
            return False
        if not key.may_use(model.names):
            return False
        contract = self.front.table.contract(model.triton_model)
        if contract is None:
            return False
        name = form.request.model
        # Which of several versions a request is for is decided each time, the usual way.
        if contract != form.contract or self._models.get(name) is not model or name in self.front.weights:
            self._forms.outdated(form)
            return False
        record = Record(scope)
        record.key = key
        record.body_at = record.started_at
        record.body_bytes = len(known.body)
        record.asks(model.names[0], stream=bool(form.request.stream))
        try:
            prompt = form.again.render(known.messages)
        except Exception:
            # The usual way knows what to say of messages that the template refuses.
            return False
        self.requests.begin(record)
        _Run(self, exchange(), record, form, prompt, known.body).enter()
        return True


class _Deadlines:
    """Of requests that have the same time each, so that the first is always the next. One timer for all of them: to set
    and to cancel one costs as much as parsing a request."""

    def __init__(self) -> None:
        self._runs: dict[_Run, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, run: "_Run") -> None:
        self._runs[run] = None
        if self._timer is None:
            self._timer = run.loop.call_at(run.deadline, self._look)

    def remove(self, run: "_Run") -> None:
        self._runs.pop(run, None)

    def _look(self) -> None:
        self._timer = None
        while self._runs:
            run = next(iter(self._runs))
            if run.deadline > run.loop.time():
                self._timer = run.loop.call_at(run.deadline, self._look)
                return
            del self._runs[run]
            run.too_late()


class _Run:
    """One request."""

    __slots__ = (
        "_answer_id",
        "_begun_answer",
        "_body",
        "_connecting",
        "_course",
        "_created",
        "_direct",
        "_entry",
        "_errand",
        "_exchange",
        "_failure",
        "_form",
        "_generation",
        "_grace",
        "_is_over",
        "_lease",
        "_limit",
        "_passage",
        "_prompt",
        "_record",
        "_writer",
        "deadline",
        "loop",
    )

    def __init__(
        self, direct: Direct, exchange: Exchange, record: Record, form: ChatForm, prompt: str, body: bytes
    ) -> None:
        self._direct = direct
        self._exchange = exchange
        self._record = record
        self._form = form
        self._prompt = prompt
        self._body = body
        self._lease: Lease | None = None
        self._generation: Generation | None = None
        self._begun_answer: Answer | None = None
        self._failure: InstanceFailure | None = None
        self._course: Course | None = None
        self._limit: asyncio.Timeout | None = None
        self._passage: Passage | None = None
        self._errand: Errand | None = None
        self._is_over = False
        self._grace: asyncio.TimerHandle | None = None
        self.loop = exchange.loop
        self.deadline = self.loop.time() + direct.request_timeout
        direct.deadlines.add(self)
        exchange.on_gone = self._gone

    def enter(self) -> None:
        self._entry = self._direct.front.enter(self._form.ask(self._prompt, self._record.key))
        self._entry.decided(self._entered)

    # As a `Running` of the lease

    @property
    def waits(self) -> bool:
        if self._errand is not None:
            return not self._errand.is_held
        if self._passage is not None and self._passage.is_held:
            return False
        held = self._record.stream and self._exchange.is_held
        return self._generation is not None and self._generation.waits and not held

    def cancel(self, reason: Exception) -> None:
        """Wherever the request is."""
        if self._is_over or (self._grace is not None and not isinstance(reason, ClientGone)):
            # It is over, but for a client that does not take the end of it.
            return
        if self._course is not None:
            self._course.cancel(reason)
        elif self._lease is None:
            self._entry.cancel(reason)
        else:
            self._ended_by(reason)

    # Inside

    @property
    def _answer(self) -> Answer:
        """Of a request that the relay asks it is not wanted before its end."""
        if self._begun_answer is None:
            self._begun_answer = Answer(0, 0, keeps_text=not self._record.stream)
        return self._begun_answer

    def _gone(self) -> None:
        self.cancel(ClientGone())

    def too_late(self) -> None:
        """The deadline has passed."""
        if self._limit is not None:
            self._limit.reschedule(self.deadline + DEADLINE_GRACE_S)
        self.cancel(self._direct.route.too_late())

    def _entered(self) -> None:
        lease = self._entry.lease
        if lease is None:
            assert self._entry.error is not None
            self._ended_by(self._entry.error)
            return
        self._lease = lease
        self._record.entered(lease.upstream.name, 1, lease.queue_seconds)
        try:
            is_asked = self._ask(lease)
        except Exception as error:
            self._ended_by(error)
            return
        if not is_asked:
            self._go_on(None)

    def _ask(self, lease: Lease) -> bool:
        """Send the request; False where that takes a task."""
        form, record = self._form, self._record
        if form.parts is None or lease.contract != form.contract or lease.model != form.model.triton_model:
            return False
        self._answer_id, self._created = f"chatcmpl-{new_id()}", int(time.time())
        headers = record.trace.headers() if record.trace else b""
        if record.stream and self._have_it_told(lease, headers):
            return True
        body = form.parts.body(self._answer_id, self._prompt)
        try:
            generation = lease.upstream.paths.by_itself(
                lease.model, form.contract, body, form.places, lease, headers, form.model.batched_egress
            )
        except ApiError:
            return False
        if generation is None:
            return False
        self._generation = generation
        self._writer = form.again.writer(self._answer_id, self._created)
        record.sent()
        record.went_directly()
        lease.run(self)
        # Unless the instance was given up just now.
        if self._generation is generation and not generation.begin(self._news):
            self._connecting = self.loop.create_task(self._connect(generation))
        return True

    def _have_it_told(self, lease: Lease, headers: bytes) -> bool:
        """By the relay, from its beginning to its end; False where that cannot be."""
        form, record, exchange = self._form, self._record, self._exchange
        client, question, telling = exchange.client, form.question, form.again.telling
        if self._direct.relay.native is None or question is None or telling is None:
            return False
        if client is None or client.get_write_buffer_size():
            return False
        relayed = lease.upstream.paths.relayed(lease.model, form.contract, form.model.batched_egress)
        if relayed is None:
            return False
        upstreams, head = relayed
        record.sent()
        record.went_directly()
        lease.run(self)
        if lease.problem:
            # The instance was given up just now, and so was this.
            return True
        try:
            self._errand = Errand(
                self._direct.relay,
                upstreams,
                question.request(head, headers, self._answer_id, self._prompt),
                client,
                self._head(),
                form.again.identity.of(self._answer_id, self._created),
                telling,
                lease,
                self._errand_is_over,
            )
        except OSError:
            raise unreachable() from None
        lease.meter = self._count_told
        exchange.on_more = self._look
        return True

    def _count_told(self) -> None:
        if self._errand is not None and self._errand.count():
            # It goes nowhere else now.
            self._prompt, self._body = "", b""

    def _look(self) -> None:
        """More comes of the client, which may have seen the end already."""
        if self._errand is not None and self._errand.is_finished:
            self._errand_is_over()

    def _errand_is_over(self) -> None:
        """The relay has told all, or come to what it leaves to others."""
        try:
            outcome = self._stop_errand()
            assert outcome is not None
            if outcome.is_finished:
                self._is_told()
            elif (connection := outcome.take_socket()) >= 0:
                self._take_over(outcome, socket.socket(fileno=connection))
            else:
                raise unreachable()
        except Exception as error:
            self._ended_by(error)

    def _is_told(self) -> None:
        self._record.ended(self._answer.finish(None))
        self._exchange.done()
        self._end()

    def _stop_errand(self) -> "Outcome | None":
        errand, self._errand = self._errand, None
        if errand is None:
            return None
        outcome = errand.stop()
        assert self._lease is not None
        self._lease.meter = self._exchange.on_more = None
        answer, record = self._answer, self._record
        answer.relayed(outcome.prompt_tokens, outcome.tokens)
        answer.finish_reason = outcome.reason or None
        if not outcome.is_finished:
            # For who goes on with it, and does not begin again.
            self._writer = self._form.again.writer(self._answer_id, self._created)
            if outcome.is_begun:
                self._writer.delta(answer, _NOTHING)
        if outcome.is_begun:
            record.status = 200
            record.admitted(outcome.connect_seconds, outcome.head_at)
            self._exchange.begin()
        if outcome.tokens:
            record.tokens(0, 1, outcome.first)
            record.relayed(outcome.tokens)
            if outcome.last > outcome.first:
                record.gaps(0, outcome.tally, outcome.gap_sum, outcome.last)
        return outcome

    def _take_over(self, outcome: "Outcome", connection: socket.socket) -> None:
        """What the relay has not told."""
        form, lease = self._form, self._lease
        assert lease is not None
        if outcome.is_begun:
            self._exchange.on_ready = self._news
        self._generation = lease.upstream.paths.taken_over(lease.model, form.contract, form.places, lease)
        self._connecting = self.loop.create_task(self._adopt(self._generation, outcome, connection))

    async def _adopt(self, generation: Generation, outcome: "Outcome", connection: socket.socket) -> None:
        has_head, seconds = outcome.has_head, outcome.connect_seconds
        try:
            await generation.adopt(connection, outcome.rest, self._news, has_head=has_head, seconds=seconds)
        except Exception as error:
            if self._generation is generation:
                self._ended_by(error)
            else:
                forget_where(error)

    async def _connect(self, generation: Generation) -> None:
        try:
            await generation.connect(self._news)
        except Exception as error:
            if self._generation is generation:
                self._ended_by(error)
            else:
                forget_where(error)

    def _news(self) -> None:
        """Something may have come from the instance, or the client reads on."""
        generation, record = self._generation, self._record
        if self._is_over or generation is None:
            return
        out: list[bytes] = []
        try:
            while not (record.stream and self._exchange.is_held) and (deltas := generation.news()) != []:
                if deltas is None:
                    self._finish(out)
                    return
                self._take(deltas, out)
        except BrokenConnection:
            self._go_on(None)
            return
        except Exception as error:
            self._write(out)
            self._ended_by(error)
            return
        if out:
            self._write(out)

    def _take(self, deltas: list[Delta], out: list[bytes]) -> None:
        answer, record = self._answer, self._record
        now = time.monotonic()
        if not record.head_at:
            assert self._generation is not None
            record.admitted(self._generation.connect_seconds)
            if record.stream:
                self._begin()
        before = answer.completion_tokens
        for delta in deltas:
            answer.add(delta)
            if record.stream:
                out.append(self._writer.delta(answer, delta))
        if answer.completion_tokens > before:
            record.tokens(0, answer.completion_tokens - before, now)
            if record.stream:
                # It goes nowhere else now.
                self._prompt, self._body = "", b""

    def _head(self) -> bytes:
        """Of the stream to the client."""
        return self._exchange.head(b"%b%b: %b\r\n" % (self._form.stream_lines, *self._record.header))

    def _begin(self) -> None:
        """The stream to the client."""
        record, exchange = self._record, self._exchange
        record.status = 200
        exchange.begin(self._head())
        exchange.on_ready = self._news
        around = self._writer.around_text(self._answer)
        native = self._direct.relay
        if native.native is not None and around is not None and exchange.client is not None:
            lender, lease = self._generation, self._lease
            assert lender is not None
            assert lease is not None
            self._passage = Passage(native, exchange.client, lender, around, self._answer, record, lease)

    def _write(self, out: list[bytes]) -> None:
        data = b"".join(out)
        # Nothing comes of a response without text; an empty chunk would be the end.
        if not data:
            return
        self._exchange.write(data)
        if self._passage is not None and not self._exchange.is_held:
            self._passage.offer()

    def _finish(self, out: list[bytes]) -> None:
        """The engine's answer has ended."""
        answer, record, writer = self._answer, self._record, self._writer
        reason = answer.finish(None)
        record.ended(reason)
        counts = usage_of(answer.prompt_tokens, answer.completion_tokens)
        if not record.stream:
            body = writer.whole((answer,), (reason,), counts)
            self._reply(200, self._form.own_headers, body)
            return
        out += writer.finish(answer, reason), writer.end(counts)
        self._stop_passage()
        self._exchange.end(b"".join(out))
        self._end()

    def _ended_by(self, error: Exception) -> None:
        if (outcome := self._stop_errand()) is not None and outcome.is_finished:
            # Before anybody looked.
            self._is_told()
            return
        self._stop_passage()
        if isinstance(error, ClientGone):
            self._record.status = CLIENT_GONE
            self._end()
        elif isinstance(error, InstanceFailure) and self._lease is not None:
            if self._is_streaming and self._lease.tokens:
                # Another one would say again what the client has.
                self._lease.failed(error)
                self._tell(error)
            else:
                self._go_on(error)
        else:
            self._tell(error if isinstance(error, ApiError) else bug())
        forget_where(error)

    def _tell(self, error: ApiError) -> None:
        self._record.error = error
        if not self._is_streaming:
            self._reply(error.status, error_headers(error), error.body())
        elif self._exchange.is_held:
            # Once the client reads on, unless it takes too long.
            self._close_generation()
            self._exchange.on_ready = partial(self._end_with, error)
            self._grace = self.loop.call_later(DEADLINE_GRACE_S, self._let_go)
        else:
            self._end_with(error)

    def _end_with(self, error: ApiError) -> None:
        self._exchange.end(sse.error_event(error))
        self._end()

    def _let_go(self) -> None:
        """Of a client that does not read."""
        self._direct.route.stopped_reading(self._record)
        self._exchange.abort()
        self._end()

    @property
    def _is_streaming(self) -> bool:
        return self._record.stream and self._record.status == 200

    def _reply(self, status: int, headers: list[Header], body: bytes) -> None:
        record = self._record
        record.status = status
        self._exchange.reply(status, [JSON, (b"content-length", b"%d" % len(body)), *headers, record.header], body)
        self._end()

    def _stop_passage(self) -> None:
        """Nothing that is written from here on may meet what the relay writes."""
        passage, self._passage = self._passage, None
        if passage is not None:
            passage.stop()

    def _close_generation(self) -> None:
        generation, self._generation = self._generation, None
        if generation is not None:
            generation.close()

    def _end(self) -> None:
        record, lease = self._record, self._lease
        self._is_over = True
        self._direct.deadlines.remove(self)
        if self._grace is not None:
            self._grace.cancel()
        self._exchange.on_gone = self._exchange.on_ready = None
        self._stop_passage()
        self._close_generation()
        if lease is not None:
            answer = self._answer
            record.prompt_tokens, record.completion_tokens = answer.prompt_tokens, answer.completion_tokens
            lease.leave(answer.prompt_tokens + answer.completion_tokens)
        self._direct.requests.end(record)

    def _go_on(self, failure: InstanceFailure | None) -> None:
        """As a task, with the place that there is. `failure`: of its instance."""
        self._close_generation()
        self._exchange.on_ready = None
        self._failure = failure
        self._course = Course()
        self._exchange.serve(self._serve)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            sends = naming(self._record, send)
            await self._direct.route.guarded(self._record, sends, self._served(sends))
        finally:
            self._is_over = True
            self._direct.deadlines.remove(self)
            self._exchange.on_gone = None
            self._direct.requests.end(self._record)

    async def _served(self, send: Send) -> None:
        assert self._lease is not None
        assert self._course is not None
        plan = self._form.plan(self._prompt, self._body)
        # Whoever streams lets go of them.
        self._prompt, self._body = "", b""
        try:
            is_late = self.deadline <= self.loop.time()
            async with asyncio.timeout_at(self.deadline + DEADLINE_GRACE_S if is_late else None) as self._limit:
                await self._direct.route.served(
                    plan,
                    self._record,
                    self._lease,
                    self._course,
                    send,
                    self._exchange.client,
                    self._failure,
                    Begun(self._answer_id, self._writer) if self._is_streaming else None,
                )
        except (ClientGone, OSError) as error:
            # OSError: a send after the client is gone, as ASGI servers raise it.
            forget_where(error)
            self._record.status = CLIENT_GONE


