"""`POST /v1/chat/completions`: read, translate, send, encode.

A plain ASGI callable ahead of FastAPI's routing. The upstream is always a stream, so that a client
that goes away, a deadline and an engine that is gone are seen at once, for whole answers too.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from dataclasses import dataclass

from gateway import metrics
from gateway.api.http import (
    AsgiSink,
    ClientGone,
    Header,
    Receive,
    Scope,
    Send,
    Sink,
    read_body,
    send_error,
    send_json,
    warning_headers,
    watch_client,
)
from gateway.checker import Checker, NotValidated
from gateway.models import ServedModel
from gateway.openai import sse
from gateway.openai.errors import ApiError, bad_request, unavailable
from gateway.openai.fields import CHAT, judge_extras
from gateway.openai.schema import ChatRequest, StreamOptions, parse_chat
from gateway.output.answer import Answer
from gateway.routing.instances import Instance
from gateway.routing.policy import choose
from gateway.settings import Settings
from gateway.translate.sampling import refuse_on_stock, sampling_parameters
from gateway.translate.structured import FIELDS, Constraint, constraint_of
from gateway.triton import contract
from gateway.triton.contract import Backend
from gateway.triton.generation import Generation

_log = logging.getLogger(__name__)

_GONE_STATUS = 499
# Past the deadline, for the client to take the error. One that does not read is let go then.
_DEADLINE_GRACE_S = 2.0
_LAST_WORD_S = 1.0


@dataclass(slots=True)
class _Job:
    """A request that passed every check the gateway can make."""

    request: ChatRequest
    model: ServedModel
    instance: Instance
    backend: Backend
    body: bytes
    constraint: Constraint | None
    headers: list[Header]


class ChatCompletions:
    """The endpoint. `models` by the name that a client asks for."""

    def __init__(
        self, settings: Settings, models: dict[str, ServedModel], instances: list[Instance], checker: Checker
    ) -> None:
        self._settings = settings
        self._models = models
        self._instances = instances
        self._checker = checker
        self._open: dict[str, int] = dict.fromkeys((m.triton_model for m in models.values()), 0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        deadline = asyncio.get_running_loop().time() + self._settings.request_timeout
        name = ""
        try:
            async with asyncio.timeout_at(deadline):
                body = await read_body(scope, receive, self._settings.max_body_bytes)
            started = time.monotonic()
            request = parse_chat(body)
            model = self._model(request.model)
            name = model.names[0]
            with self._admitted(model):
                async with asyncio.timeout_at(deadline + _DEADLINE_GRACE_S):
                    status = await self._answer(request, model, started, deadline, receive, send)
        except ClientGone:
            status = _GONE_STATUS
        except ApiError as error:
            status = error.status
            await send_error(send, error)
        except TimeoutError:
            status = await self._timed_out(name, send)
        except asyncio.CancelledError:
            # The server ends its tasks when the time to drain is over; streams have said so to their clients.
            status = _GONE_STATUS
        except Exception:
            status = 500
            await send_error(send, _bug())
        metrics.requests_total.labels(name, status).inc()

    async def _timed_out(self, name: str, send: Send) -> int:
        """The body did not come in time, or the client did not take its answer, past every deadline."""
        if name:
            _log.info("a client of model %s stopped reading; its connection is closed", name)
            return _GONE_STATUS
        error = ApiError(408, f"The body took longer than {self._settings.request_timeout:g} s.", code="body_timeout")
        await send_error(send, error)
        return error.status

    def _model(self, name: str) -> ServedModel:
        model = self._models.get(name)
        if model is None:
            raise ApiError(
                404,
                f"The model {name!r} does not exist; GET /v1/models lists those that do.",
                param="model",
                code="model_not_found",
            )
        return model

    def _admitted(self, model: ServedModel) -> "_InFlight":
        if self._open[model.triton_model] >= self._settings.max_in_flight:
            raise ApiError(
                429,
                f"{self._settings.max_in_flight} requests for this model are open (setting max_in_flight); try again.",
                code="too_many_requests",
                headers={"retry-after": "1"},
            )
        return _InFlight(self._open, model)

    async def _answer(
        self,
        request: ChatRequest,
        model: ServedModel,
        started: float,
        deadline: float,
        receive: Receive,
        send: Send,
    ) -> int:
        """Answer one request; returns the status that the client saw. An `ApiError` that is raised has
        not been sent. `deadline` is in the loop's time."""
        job = await self._prepare(request, model)
        generation = Generation(job.instance, model.triton_model, job.body)
        watcher = watch_client(receive, lambda: generation.cancel(ClientGone()))
        alarm = asyncio.get_running_loop().call_at(deadline, generation.cancel, self._too_late())
        answer = Answer()
        try:
            await generation.open()
            if request.stream:
                await self._stream(job, generation, answer, started, AsgiSink(send))
            else:
                await self._whole(job, generation, answer, started, send)
            return 200
        except (ClientGone, OSError):
            # OSError: a send after the client is gone, as ASGI servers raise it.
            metrics.cancelled_total.labels(model.names[0]).inc()
            return _GONE_STATUS
        finally:
            generation.close()
            watcher.cancel()
            alarm.cancel()
            metrics.prompt_tokens_total.labels(model.names[0]).inc(answer.prompt_tokens)
            metrics.completion_tokens_total.labels(model.names[0]).inc(answer.completion_tokens)
            metrics.request_seconds.labels(model.names[0]).observe(time.monotonic() - started)

    async def _prepare(self, request: ChatRequest, model: ServedModel) -> _Job:
        if request.stream_options is not None and not request.stream:
            raise bad_request("stream_options needs stream: true.", "stream_options")
        warnings = judge_extras(request.model_extra or {}, CHAT, strict=self._settings.strict_fields)
        constraint = constraint_of({field: getattr(request, field, None) for field in FIELDS})
        if model.template is None:
            raise ApiError(400, model.no_chat, param="model", code="model_without_chat_template")
        prompt = model.template.render(request)
        sampling = sampling_parameters(request, model.defaults, model.max_model_len)
        if constraint is not None:
            constraint = await self._check(constraint, model)
        instance = choose(self._instances, model.triton_model)
        if instance is None:
            raise unavailable(self._why_not_ready(model))
        backend = instance.backends[model.triton_model]
        text = prompt.text
        if backend is Backend.STOCK:
            refuse_on_stock(request)
            # The stock backend has the tokenizer add its BOS to a prompt that already begins with one.
            if model.added_bos and not request.add_special_tokens:
                text = text.removeprefix(model.added_bos)
        body = contract.request_body(
            backend,
            text,
            sampling,
            constraint.engine_value() if constraint else None,
            add_special_tokens=bool(request.add_special_tokens),
            context_len=model.max_model_len or model.trained_len,
        )
        headers = warning_headers(warnings + prompt.warnings)
        return _Job(request, model, instance, backend, body, constraint, headers)

    async def _check(self, constraint: Constraint, model: ServedModel) -> Constraint:
        metrics.structured_total.labels(model.names[0], constraint.kind).inc()
        return await self._checker.check(constraint, model.grammar_backend)

    def _why_not_ready(self, model: ServedModel) -> str:
        reasons = [i.reasons[model.triton_model] for i in self._instances if model.triton_model in i.reasons]
        return (
            f"The model {model.names[0]!r} is not ready: {reasons[0] if reasons else 'no Triton server answered yet'}."
        )

    def _too_late(self) -> ApiError:
        return ApiError(
            504,
            f"The answer took longer than {self._settings.request_timeout:g} s (setting request_timeout).",
            code="deadline_exceeded",
        )

    async def _stream(self, job: _Job, generation: Generation, answer: Answer, started: float, sink: Sink) -> None:
        options = job.request.stream_options or StreamOptions()
        events = sse.ChatStream(
            *_identity(job),
            usage_last=bool(options.include_usage),
            usage_always=bool(options.continuous_usage_stats),
        )
        await sink.start_stream(job.headers)
        first = True
        try:
            while (deltas := await generation.deltas()) is not None:
                out = []
                for delta in deltas:
                    answer.add(delta)
                    if first:
                        out.append(events.role(answer.prompt_tokens))
                        first = False
                    if delta.text:
                        out.append(events.content(delta.text, answer.prompt_tokens, answer.completion_tokens))
                        self._saw_text(job, answer, started)
                if out:
                    await sink.write(b"".join(out))
            reason = answer.check_finished(job.constraint.kind if job.constraint else None)
            await sink.write(events.finish(reason, answer.prompt_tokens, answer.completion_tokens))
        except ApiError as error:
            await sink.write(sse.error_event(error))
        except asyncio.CancelledError:
            # The time to drain is over, or the client does not read: then not even this gets through.
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(_LAST_WORD_S):
                    await sink.write(sse.error_event(unavailable("The gateway is shutting down.")))
                    await sink.end()
            raise
        except (ClientGone, OSError):
            raise
        except Exception:
            await sink.write(sse.error_event(_bug()))
        await sink.end()

    async def _whole(self, job: _Job, generation: Generation, answer: Answer, started: float, send: Send) -> None:
        while (deltas := await generation.deltas()) is not None:
            for delta in deltas:
                answer.add(delta)
            self._saw_text(job, answer, started)
        reason = answer.check_finished(job.constraint.kind if job.constraint else None)
        text = answer.text
        headers = job.headers
        if job.constraint is not None and reason == "stop" and not _may_be_cut(job.request):
            headers = [*headers, *await self._violation(job.constraint, text, job.model)]
        counts = sse.usage(answer.prompt_tokens, answer.completion_tokens)
        await send_json(send, 200, sse.chat_completion(*_identity(job), text, reason, counts), headers)

    def _saw_text(self, job: _Job, answer: Answer, started: float) -> None:
        if not answer.begun and any(answer.parts):
            answer.begun = True
            metrics.time_to_first_token.labels(job.model.names[0]).observe(time.monotonic() - started)

    async def _violation(self, constraint: Constraint, text: str, model: ServedModel) -> list[Header]:
        """Check a finished answer against its constraint: the client is told, the operator too."""
        try:
            found = await self._checker.violation(constraint, text)
        except NotValidated as error:
            metrics.structured_not_validated_total.labels(model.names[0], constraint.kind).inc()
            _log.warning("an answer of model %s was not validated: %s", model.names[0], error)
            return [(b"x-gateway-structured-output", b"not-validated")]
        if found is None:
            return []
        metrics.structured_violations_total.labels(model.names[0], constraint.kind).inc()
        _log.error("an answer of model %s violates its %s constraint: %s", model.names[0], constraint.kind, found)
        return [(b"x-gateway-structured-output", b"violation")]


def _bug() -> ApiError:
    """For an exception that nobody foresaw: its trace goes to the log, a plain sentence to the client."""
    _log.exception("a request met an unexpected failure")
    return ApiError(500, "The gateway failed; the cause is in its log.", code="gateway_error")


def _may_be_cut(request: ChatRequest) -> bool:
    """Whether the client's own stop condition may have ended the answer in the middle of what it has to obey."""
    return bool(request.stop or request.stop_token_ids)


def _identity(job: _Job) -> tuple[str, int, str]:
    return f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), job.request.model


class _InFlight:
    """Counts a model's open requests."""

    def __init__(self, counts: dict[str, int], model: ServedModel) -> None:
        self._counts = counts
        self._model = model

    def __enter__(self) -> None:
        self._counts[self._model.triton_model] += 1
        metrics.in_flight.labels(self._model.names[0]).inc()

    def __exit__(self, *_: object) -> None:
        self._counts[self._model.triton_model] -= 1
        metrics.in_flight.labels(self._model.names[0]).dec()
