"""The course of a request for an answer, the same for every API: read, translate, send, encode.

What differs between the APIs is a `Dialect`. A route is a plain ASGI callable ahead of FastAPI's routing. The
upstream is always a stream, so that a client that goes away, a deadline and an engine that is gone are seen at
once, for whole answers too.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from gateway.access.keys import Key
from gateway.api.forms import Forms, Messages
from gateway.api.http import (
    CLIENT,
    STREAM_HEADERS,
    AsgiSink,
    ClientGone,
    Header,
    Receive,
    Scope,
    Send,
    Sink,
    head_lines,
    read_body,
    send_error,
    send_json,
    warning_headers,
    watch_client,
)
from gateway.api.relay import Passage, Relay, native_question
from gateway.aside import aside, drop
from gateway.checker import Checker, NotValidated
from gateway.desk.ask import Ask
from gateway.desk.front import Front, Lease
from gateway.models import ServedModel, ServedModels, named, not_ready
from gateway.new_id import new_id
from gateway.observe import metrics
from gateway.observe.record import CLIENT_GONE, Record, record_of
from gateway.openai import sse
from gateway.openai.errors import ApiError, bad_request, forget_where, unavailable
from gateway.openai.fields import Field, judge_extras
from gateway.openai.schema import LARGE_BODY
from gateway.openai.writing import is_small
from gateway.output.answer import Answer, usage
from gateway.output.events import OutputParser
from gateway.output.logprobs import TokenBytes
from gateway.output.thinking import ThinkingTokens
from gateway.settings import Settings
from gateway.translate.constraints import both_bind
from gateway.translate.sampling import for_choice, inputs, refuse_missing, sampling_parameters, without_effect
from gateway.translate.structured import FIELDS, Constraint, constraint_of
from gateway.triton.contract import BodyParts, Delta, Encoded, GenerateRequest, ModelContract, Prompt, Written, is_text
from gateway.triton.failure import InstanceFailure
from gateway.triton.fan_out import FanOut, News
from gateway.triton.generation import Generation

if TYPE_CHECKING:
    from gateway_relay import Question as NativeQuestion
    from gateway_relay import Telling as NativeTelling

_log = logging.getLogger(__name__)

# Past the deadline, for the client to take the error. One that does not read is let go then.
DEADLINE_GRACE_S = 2.0
_LAST_WORD_S = 1.0
_ALTERNATIVE_BYTES = 256
# An alternative that is still text has a fourth of that.
_READING = 4
_STRUCTURED = frozenset(FIELDS)
# Of a model whose context length nobody knows.
_NO_LIMIT = 1_000_000

_Request = TypeVar("_Request", bound=Any)
_Result = TypeVar("_Result")


class Writer(Protocol):
    """How the answers of one request are written. Events come in the order of the deltas."""

    def delta(self, answer: Answer, delta: Delta) -> bytes:
        """The events of what one response added to `answer`."""

    def around_text(self, answer: Answer) -> tuple[bytes, bytes] | None:
        """What stands before and after the text, as JSON, in the event of a response that adds nothing else to a plain
        answer, other than the first one; None where more than the text differs from one event to the next."""

    def finish(self, answer: Answer, reason: str) -> bytes:
        """The last events of one choice. `reason` is the engine's."""

    def end(self, counts: Mapping[str, int]) -> bytes: ...

    def whole(self, answers: Sequence[Answer], reasons: Sequence[str], counts: Mapping[str, int]) -> bytes: ...


class Check(NamedTuple):
    """What a finished answer must obey: `text` of it, by `constraint`. `is_call`: the text is the arguments of a call
    that the model was free to make, so that a violation is the model's and not the engine's."""

    constraint: Constraint
    text: str
    is_call: bool = False


@dataclass(slots=True)
class Translation:
    """A request in the engine's terms, as far as its API decides.

    `outputs` are the JSON outputs that are wanted. `places` says by what names the client knows the contract's
    (`contract.error_from`), given the number of a prompt. `writer` gets the answer's id and its time of creation.
    `parser` makes a message of a choice's text, where it is more than content; `thinking` tells its tokens apart.
    `sampling` and `inputs` are added to
    what the fields say; `constraint` is what binds the answer (`is_optional`: only where it can be enforced), and
    `engine_form` makes of it, once it has been checked, what the engine gets; `checks` is what an answer is checked
    by in the end (None: its text by the constraint).
    """

    prompts: Sequence[Prompt | Encoded]
    add_special_tokens: bool
    outputs: list[str]
    places: Callable[[int], Mapping[str, str]]
    writer: Callable[[str, int], Writer]
    warnings: list[str] = field(default_factory=list)
    parser: Callable[[], OutputParser | None] = lambda: None
    thinking: Callable[[], ThinkingTokens | None] = lambda: None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    constraint: Constraint | None = None
    is_optional: bool = False
    engine_form: Callable[[Constraint], Constraint] = lambda constraint: constraint
    checks: Callable[[Answer], list[Check]] | None = None

    def let_go(self) -> None:
        """Of the prompt and what else only the making of an answer needs."""
        self.prompts = ()
        self.writer = self.parser = self.thinking = _let_go


def _let_go(*_: object) -> Any:
    raise AssertionError("the answer has begun: it is not made anew")


class Again(NamedTuple):
    """Of requests that differ in their messages alone. `render` makes a prompt of them and raises whatever a template
    does; `translate` takes the prompt; `writer` is `Translation.writer`; `identity` and `telling` say
    the same of streams for the native relay, where it can tell them.
    """

    render: Callable[[Messages], str]
    translate: Callable[[str], Translation]
    writer: Callable[[str, int], Writer]
    identity: sse.Identity
    telling: "NativeTelling | None" = None


class Dialect(Protocol[_Request]):
    """One API of requests for an answer."""

    table: Mapping[str, Field]
    id_prefix: str

    def parse(self, body: bytes) -> _Request: ...

    def count_prompts(self, request: _Request) -> int: ...

    def let_go(self, request: _Request) -> object:
        """Of the request's prompt, which may be megabytes and is returned: its answer has begun, and nothing asks for
        it again."""

    def translate(
        self, request: _Request, model: ServedModel, contract: ModelContract, constraint: Constraint | None
    ) -> Translation:
        """`constraint` is what the request's own fields say."""

    def again(
        self, request: _Request, model: ServedModel, contract: ModelContract, translation: Translation
    ) -> Again | None:
        """For requests that differ from one in nothing but their messages, which are a role and a text each;
        `request` is that one without them, and `translation` its own. None where such requests differ in more."""

    def without_messages(self, request: _Request) -> _Request: ...


@dataclass(slots=True)
class _Plan(Generic[_Request]):
    """A request that passed every check the gateway can make, in the terms of a `contract` of `model`. `constraint` is
    what binds the answer, as far as it is enforced. `body`: where that has messages that `request` has not."""

    request: _Request
    model: ServedModel
    contract: ModelContract
    translation: Translation
    constraint: Constraint | None
    sampling: Mapping[str, Any]
    inputs: Mapping[str, Any]
    warnings: list[str]
    body: bytes | None = None

    @property
    def generations(self) -> int:
        return len(self.translation.prompts) * (self.request.n or 1)

    def ask(self, key: Key) -> Ask:
        """What the desk must know. A token is about four bytes of a prompt."""
        prompts = self.translation.prompts
        tokens = sum(len(prompt) // 4 if is_text(prompt) else len(prompt) for prompt in prompts)
        return _ask(self.request.model, self.model, self.generations, tokens, self.sampling, key)


class Begun(NamedTuple):
    """What an answer keeps wherever it comes from."""

    answer_id: str
    writer: Writer


def _ask(
    name: str, model: ServedModel, generations: int, prompt_tokens: int, sampling: Mapping[str, Any], key: Key
) -> Ask:
    limit = sampling["max_tokens"] or model.max_model_len or model.trained_len or _NO_LIMIT
    limits, priority = key.limits, key.priority or 0
    return Ask(name, model.triton_model, generations, prompt_tokens, limit, key.name, limits, priority)


@dataclass(slots=True)
class Form(Generic[_Request]):
    """What a plan says of all requests that differ in nothing but their messages. `request` has none; `again` makes the
    rest of them. `parts` make the body for Triton, where the answer is nothing but text, and `question` the same for
    the native relay. `own_headers` are those of its answers: the warnings of the request and of its translation;
    `stream_lines` are them and all else in the head of a stream that is the same each time.
    """

    request: _Request
    model: ServedModel
    contract: ModelContract
    again: Again
    sampling: Mapping[str, Any]
    inputs: Mapping[str, Any]
    warnings: list[str]
    own_headers: list[Header]
    stream_lines: bytes
    places: Mapping[str, str]
    parts: BodyParts | None
    question: "NativeQuestion | None"

    def ask(self, prompt: str, key: Key) -> Ask:
        return _ask(self.request.model, self.model, 1, len(prompt) // 4, self.sampling, key)

    def plan(self, prompt: str, body: bytes) -> _Plan[_Request]:
        """Of the messages in `body`, which make this prompt."""
        translation = self.again.translate(prompt)
        return _Plan(
            self.request, self.model, self.contract, translation, None, self.sampling, self.inputs, self.warnings, body
        )


@dataclass(slots=True)
class _Job(Generic[_Request]):
    """A request at an instance. A job that is moved to another one keeps its writer: what the client has got of the
    answer stays as it is."""

    plan: _Plan[_Request]
    record: Record
    lease: Lease
    answer_id: str
    writer: Writer
    answers: list[Answer]
    generations: FanOut
    course: "Course"
    is_begun: bool = False
    """Whether something came that another instance would say again."""
    has_prompt: bool = True

    @property
    def model(self) -> ServedModel:
        return self.plan.model

    @property
    def checks(self) -> Callable[[Answer], list[Check]] | None:
        return self.plan.translation.checks

    @property
    def constraint(self) -> Constraint | None:
        return self.plan.constraint

    @property
    def constraint_kind(self) -> str | None:
        return self.constraint.kind if self.constraint else None

    @property
    def headers(self) -> list[Header]:
        return warning_headers(self.plan.warnings + self.plan.translation.warnings)


class _Cancellable(Protocol):
    def cancel(self, reason: Exception) -> None: ...


class Course:
    """What a request waits for now, so that its client and its deadline can end it wherever it is."""

    def __init__(self) -> None:
        self._reason: Exception | None = None
        self._now: _Cancellable | None = None

    def follow(self, now: _Cancellable) -> None:
        self._now = now
        if self._reason is not None:
            now.cancel(self._reason)

    def cancel(self, reason: Exception) -> None:
        self._reason = self._reason or reason
        if self._now is not None:
            self._now.cancel(self._reason)


class GenerateRoute(Generic[_Request]):
    """The endpoint of one dialect. `relay` may take plain streams; `forms` are what is known of earlier requests."""

    def __init__(
        self,
        dialect: Dialect[_Request],
        settings: Settings,
        models: ServedModels,
        front: Front,
        checker: Checker,
        relay: Relay | None = None,
        forms: Forms[Form[_Request]] | None = None,
    ) -> None:
        self._dialect = dialect
        self._settings = settings
        self._models = models
        self._front = front
        self._checker = checker
        self._native = relay
        self._forms = forms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        await self.guarded(record, send, self._asked(scope, receive, send, record))

    async def guarded(self, record: Record, send: Send, work: Awaitable[None]) -> None:
        """Do it, and tell the client and `record` of what goes wrong before anything was sent."""
        try:
            await work
        except ClientGone as error:
            forget_where(error)
            record.status = CLIENT_GONE
        except ApiError as error:
            forget_where(error)
            record.error = error
            await send_error(send, error)
        except TimeoutError as error:
            forget_where(error)
            await self._timed_out(record, send)
        except asyncio.CancelledError:
            # The server ends its tasks when the time to drain is over; streams have said so to their clients.
            record.status = CLIENT_GONE
        except Exception as error:
            record.error = bug()
            forget_where(error)
            await send_error(send, record.error)

    async def _asked(self, scope: Scope, receive: Receive, send: Send, record: Record) -> None:
        deadline = asyncio.get_running_loop().time() + self._settings.request_timeout
        async with asyncio.timeout_at(deadline) as limit:
            body = await read_body(scope, receive, self._settings.max_body_bytes)
            record.body_at = time.monotonic()
            record.body_bytes = len(body)
            plan = await self._new_plan(body, record)
            del body
            limit.reschedule(deadline + DEADLINE_GRACE_S)
            try:
                await self._answer(plan, record, deadline, receive, send, scope.get(CLIENT))
            finally:
                drop(record.body_bytes, plan.request)

    async def _timed_out(self, record: Record, send: Send) -> None:
        """The body did not come in time, nor was it read and an answer begun; or the client did not take its answer,
        past every deadline."""
        if record.status:
            self.stopped_reading(record)
            return
        limit = self._settings.request_timeout
        too_slow = ApiError(408, f"The body took longer than {limit:g} s.", code="body_timeout")
        record.error = self.too_late() if record.body_at else too_slow
        await send_error(send, record.error)

    @staticmethod
    def stopped_reading(record: Record) -> None:
        """The client did not, past every deadline."""
        _log.info("a client of model %s stopped reading; its connection is closed", record.model)
        record.status = CLIENT_GONE

    async def _new_plan(self, body: bytes, record: Record) -> _Plan[_Request]:
        request = await aside(len(body), partial(self._dialect.parse, body))
        form = None if self._forms is None else self._forms.new(body)
        del body
        try:
            plan = await self._checked(request, record)
        except BaseException:
            drop(record.body_bytes, request)
            raise
        if self._forms is not None and form is not None:
            self._forms.learn(form, self._form_of(plan))
        return plan

    async def _checked(self, request: _Request, record: Record) -> _Plan[_Request]:
        model = named(self._models, request.model, record.key, self._front.pick(request.model))
        record.asks(model.names[0], stream=bool(request.stream))
        self._front.check_size(self._dialect.count_prompts(request), request.n or 1)
        plan = await self._plan(request, model, record.body_bytes)
        if plan.constraint is not None:
            record.constraint = plan.constraint.kind
            metrics.structured_total.labels(model.names[0], plan.constraint.kind).inc()
        return plan

    def _form_of(self, plan: _Plan[_Request]) -> Form[_Request] | None:
        # Which version of several the next one is for is decided each time.
        has_versions = plan.request.model in self._front.weights
        if has_versions or plan.generations > 1 or plan.constraint or plan.request.request_id is not None:
            return None
        request = self._dialect.without_messages(plan.request)
        again = self._dialect.again(request, plan.model, plan.contract, plan.translation)
        if again is None:
            return None
        translation, parts = plan.translation, None
        if not translation.outputs:
            sampling, special = for_choice(plan.sampling, 0), translation.add_special_tokens
            asked = GenerateRequest("", sampling, add_special_tokens=special, inputs=plan.inputs)
            context_len = plan.model.max_model_len or plan.model.trained_len
            parts = BodyParts.of(plan.contract.backend, asked, context_len)
        own_headers = warning_headers(plan.warnings + translation.warnings)
        return Form(
            request,
            plan.model,
            plan.contract,
            again,
            plan.sampling,
            plan.inputs,
            plan.warnings,
            own_headers,
            head_lines([*STREAM_HEADERS, *own_headers]),
            translation.places(0),
            parts,
            None if parts is None else native_question(parts),
        )

    async def _answer(
        self,
        plan: _Plan[_Request],
        record: Record,
        deadline: float,
        receive: Receive,
        send: Send,
        client: asyncio.Transport | None,
    ) -> None:
        """Answer one request. An `ApiError` that is raised has not been sent. `deadline` is in the loop's time."""
        course = Course()
        watcher = watch_client(receive, lambda: course.cancel(ClientGone()))
        alarm = asyncio.get_running_loop().call_at(deadline, lambda: course.cancel(self.too_late()))
        try:
            entry = self._front.enter(plan.ask(record.key))
            if (lease := entry.lease) is None:
                course.follow(entry)
                lease = await entry.wait()
            record.entered(lease.upstream.name, plan.generations, lease.queue_seconds)
            await self.served(plan, record, lease, course, send, client)
        except (ClientGone, OSError) as error:
            # OSError: a send after the client is gone, as ASGI servers raise it.
            forget_where(error)
            record.status = CLIENT_GONE
        finally:
            watcher.cancel()
            alarm.cancel()

    async def served(
        self,
        plan: _Plan[_Request],
        record: Record,
        lease: Lease,
        course: "Course",
        send: Send,
        client: asyncio.Transport | None,
        failure: InstanceFailure | None = None,
        begun: "Begun | None" = None,
    ) -> None:
        """What `lease` gives place for. `failure`: of its instance, to which the request has been sent already.
        `begun`: where the client has the head of a stream, and perhaps what stands before the first token."""
        with _counted(lease, record) as answers:
            job = await self._job(plan, record, lease, course, begun)
            record.sent()
            try:
                if begun is not None:
                    # What goes wrong is told behind what the client has already.
                    await self._stream(job, AsgiSink(send), client, partial(self._go_to, job, failure))
                    return
                await self._go_to(job, failure)
                if plan.request.stream:
                    await self._stream(job, AsgiSink(send), client)
                else:
                    await self._whole(job, send)
            finally:
                job.generations.close()
                answers += job.answers

    async def _plan(
        self, request: _Request, model: ServedModel, body_bytes: int, contract: ModelContract | None = None
    ) -> _Plan[_Request]:
        """In the terms of `contract`, or of one that the model has somewhere now. `body_bytes`: the request's size."""
        options = request.stream_options
        if options is not None and not request.stream:
            raise bad_request("stream_options needs stream: true.", "stream_options")
        if options is not None and options.continuous_usage_stats and not options.include_usage:
            # vLLM, whose extension it is, gives no usage at all then.
            raise bad_request(
                "stream_options.continuous_usage_stats needs include_usage: true.",
                "stream_options.continuous_usage_stats",
                "invalid_value",
            )
        warnings, own, sampling, further = await aside(body_bytes, partial(self._fields, request, model, body_bytes))
        known = contract or self._contract(model)
        refuse_missing(request, known)

        def translate() -> Translation:
            translation = self._dialect.translate(request, model, known, own)
            if body_bytes >= LARGE_BODY:
                translation.prompts = [
                    prompt if isinstance(prompt, Encoded) else Encoded.of(prompt) for prompt in translation.prompts
                ]
            return translation

        translation = await aside(body_bytes, translate)
        constraint = translation.constraint
        if constraint is not None:
            try:
                constraint = await self._checker.check(constraint, model.grammar_backend, body_bytes)
            except ApiError as error:
                if not translation.is_optional or error.status != 400:
                    raise
                constraint = None
                warnings.append(f"calls are not kept valid: {error.message}")
        sampling = {**sampling, **translation.sampling}
        warnings += without_effect(request, sampling)
        further = {**further, **translation.inputs}
        return _Plan(request, model, known, translation, constraint, sampling, further, warnings)

    def _fields(
        self, request: _Request, model: ServedModel, body_bytes: int
    ) -> tuple[list[str], Constraint | None, dict[str, Any], dict[str, Any]]:
        """What a request says beside its prompt: warnings, its constraint, the sampling parameters, further inputs."""
        warnings = judge_extras(request.model_extra or {}, self._dialect.table, strict=self._settings.strict_fields)
        given = _STRUCTURED & request.model_fields_set
        own = constraint_of({field: getattr(request, field) for field in given}) if given else None
        if own is not None and request.constraints is not None:
            raise both_bind(own.place)
        sampling = sampling_parameters(request, model.defaults, model.max_model_len)
        if body_bytes >= LARGE_BODY:
            # A bias may name the whole vocabulary.
            sampling = {name: value if is_small(value) else Written.of(value) for name, value in sampling.items()}
        return warnings, own, sampling, inputs(request)

    def _contract(self, model: ServedModel) -> ModelContract:
        """What the model takes, for the checks that come before a place is asked for. Raises a 503."""
        contract = self._front.table.contract(model.triton_model)
        if contract is None:
            raise not_ready(model.names[0], self._front.table.why_not_ready(model.triton_model))
        return contract

    async def _job(
        self, plan: _Plan[_Request], record: Record, lease: Lease, course: Course, begun: "Begun | None"
    ) -> _Job[_Request]:
        plan = await self._for_lease(plan, record, lease)
        if begun is None:
            answer_id = f"{self._dialect.id_prefix}-{plan.request.request_id or new_id()}"
            begun = Begun(answer_id, plan.translation.writer(answer_id, int(time.time())))
        answer_id, writer = begun
        answers, generations = await self._generations(plan, record, lease, answer_id)
        job = _Job(plan, record, lease, answer_id, writer, answers, generations, course)
        course.follow(generations)
        lease.run(generations)
        return job

    async def _for_lease(self, plan: _Plan[_Request], record: Record, lease: Lease) -> _Plan[_Request]:
        """The plan for where the request goes: another version of the model, or an instance with another backend."""
        if lease.contract == plan.contract and lease.model == plan.model.triton_model:
            return plan
        model = named(self._models, plan.request.model, record.key, lease.model)
        request = plan.request if plan.body is None else self._dialect.parse(plan.body)
        return await self._plan(request, model, record.body_bytes, lease.contract)

    async def _generations(
        self, plan: _Plan[_Request], record: Record, lease: Lease, answer_id: str
    ) -> tuple[list[Answer], FanOut]:
        """The choices of the request at the lease's instance. Raises a 400 for what only shows here."""
        model, translation, contract = plan.model, plan.translation, plan.contract
        value = translation.engine_form(plan.constraint).engine_value() if plan.constraint else None
        choices = plan.request.n or 1
        headers = record.trace.headers() if record.trace else b""
        answers: list[Answer] = []
        keeps_text = not plan.request.stream or translation.checks is not None
        generations: list[Generation] = []
        for number, prompt in enumerate(translation.prompts):
            places = translation.places(number)
            for choice in range(choices):
                index = len(answers)
                parser, thinking = translation.parser(), translation.thinking()
                answers.append(Answer(index, number, parser, thinking, keeps_text=keeps_text))
                asked = GenerateRequest(
                    prompt,
                    for_choice(plan.sampling, choice),
                    value,
                    translation.add_special_tokens,
                    plan.inputs,
                    tuple(translation.outputs),
                    answer_id if plan.generations == 1 else f"{answer_id}-{index}",
                )
                generations.append(
                    await lease.upstream.paths.generation(
                        lease.model,
                        contract,
                        asked,
                        model.max_model_len or model.trained_len,
                        places,
                        lease,
                        headers,
                        model.batched_egress,
                        self._settings.stream_buffer_bytes,
                        record.body_bytes,
                    )
                )
        return answers, FanOut(generations)

    async def _go_to(self, job: _Job[_Request], failure: InstanceFailure | None) -> None:
        """To the instance, or after a `failure` of this one to another."""
        if failure is not None:
            await self._move(job, failure)
        await self._open(job)
        job.record.admitted(job.generations.connect_seconds)

    async def _open(self, job: _Job[_Request]) -> None:
        while True:
            try:
                return await job.generations.open()
            except InstanceFailure as failure:
                await self._move(job, failure)

    async def _somewhere(self, job: _Job[_Request], work: Callable[[], Awaitable[_Result]]) -> _Result:
        """What `work` makes of an open answer; at another instance where its own fails and it can begin anew."""
        while True:
            try:
                return await work()
            except InstanceFailure as failure:
                await self._move(job, failure)
                await self._open(job)

    async def _move(self, job: _Job[_Request], failure: InstanceFailure) -> None:
        """To another instance, once, as long as the client has got nothing that the other one would say again. Else
        raises `failure`."""
        lease = job.lease
        lease.failed(failure)
        if job.is_begun or (job.plan.request.stream and lease.tokens) or not await lease.move():
            raise failure
        job.generations.close()
        job.record.moved(lease.upstream.name)
        _log.info("%s goes to %s: %s", job.answer_id, lease.upstream.name, failure.problem)
        job.plan = await self._for_lease(job.plan, job.record, lease)
        job.answers, job.generations = await self._generations(job.plan, job.record, lease, job.answer_id)
        job.course.follow(job.generations)
        lease.run(job.generations)

    def too_late(self) -> ApiError:
        return ApiError(
            504,
            f"The answer took longer than {self._settings.request_timeout:g} s (setting request_timeout).",
            code="deadline_exceeded",
        )

    async def _stream(
        self,
        job: _Job[_Request],
        sink: Sink,
        client: asyncio.Transport | None,
        go_on: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`go_on`: what is to be done first for a stream that the client has the beginning of."""
        if go_on is None:
            await sink.start_stream(job.headers)
        try:
            if go_on is not None:
                await go_on()
            await self._somewhere(job, partial(self._relay, job, sink, client))
            await sink.write(job.writer.end(usage(job.answers)))
            if job.checks is not None:
                # Too late for this client; the operator is told all the same.
                await self._violations(job, [a for a in job.answers if a.finish_reason == "stop"])
        except ApiError as error:
            forget_where(error)
            job.record.error = error
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
            job.record.error = bug()
            await sink.write(sse.error_event(job.record.error))
        await sink.end()

    async def _relay(self, job: _Job[_Request], sink: Sink, client: asyncio.Transport | None) -> None:
        """The events of all that comes from the engine."""
        writer = job.writer
        passage = self._passage(job, client)

        def take(news: News) -> Awaitable[None] | None:
            now = time.monotonic()
            out: list[bytes] = []
            failure: Exception | None = None
            try:
                for number, deltas in news:
                    answer = job.answers[number]
                    if deltas is None:
                        job.is_begun = True
                        out.append(writer.finish(answer, self._reason(job, answer)))
                        continue
                    before = answer.completion_tokens
                    for delta in deltas:
                        answer.add(delta)
                        out.append(writer.delta(answer, delta))
                    if answer.completion_tokens > before:
                        job.record.tokens(number, answer.completion_tokens - before, now)
                        if job.has_prompt:
                            self._let_go(job)
            except Exception as error:
                failure = error
            # Also what came before an end that is no proper one.
            data = b"".join(out)
            written = sink.push(data) if data else None
            if passage is not None and data and written is None:
                passage.offer()
            return written if failure is None else _fail(failure, written)

        try:
            await job.generations.each(take)
        finally:
            # Nothing that is written from here on may meet what the relay writes.
            if passage is not None:
                passage.stop()

    def _passage(self, job: _Job[_Request], client: asyncio.Transport | None) -> Passage | None:
        """The way of the answer into the relay, if it is one stream of nothing but text."""
        if self._native is None or client is None or not job.generations.can_lend:
            return None
        (answer,) = job.answers
        around = job.writer.around_text(answer)
        # A stop_reason comes with the end.
        if around is None or not answer.is_plain or set(job.plan.translation.outputs) - {"stop_reason"}:
            return None
        return Passage(self._native, client, job.generations, around, answer, job.record, job.lease)

    def _let_go(self, job: _Job[_Request]) -> None:
        """The client has tokens: the request goes nowhere else, and is not kept for as long as its answer takes."""
        job.has_prompt = False
        job.plan.translation.let_go()
        job.plan.body = None
        drop(job.record.body_bytes, self._dialect.let_go(job.plan.request))

    async def _whole(self, job: _Job[_Request], send: Send) -> None:
        ends = await self._somewhere(job, partial(self._collected, job))
        reasons = [ends[number] for number in range(len(job.answers))]
        headers = job.headers
        finished = [answer for answer, reason in zip(job.answers, reasons, strict=True) if reason == "stop"]
        headers = [*headers, *await self._violations(job, finished)]
        size = _size(job.answers)
        body = await aside(size, partial(job.writer.whole, job.answers, reasons, usage(job.answers)))
        drop(size, [kept for answer in job.answers for kept in answer.large])
        await send_json(send, 200, body, headers)

    async def _collected(self, job: _Job[_Request]) -> dict[int, str]:
        """All that comes from the engine; the reasons of the ends by the numbers of the choices."""
        ends: dict[int, str] = {}

        def take(news: News) -> None:
            now = time.monotonic()
            for number, deltas in news:
                answer = job.answers[number]
                if deltas is None:
                    # An answer that is no proper one ends the others too, now.
                    ends[number] = self._reason(job, answer)
                    continue
                before = answer.completion_tokens
                for delta in deltas:
                    answer.add(delta)
                if answer.completion_tokens > before:
                    job.record.tokens(number, answer.completion_tokens - before, now)

        await job.generations.each(take)
        return ends

    def _reason(self, job: _Job[_Request], answer: Answer) -> str:
        try:
            reason = answer.finish(job.constraint_kind)
            job.record.ended(reason)
            return reason
        except ApiError as error:
            raise (error if len(job.answers) == 1 else error.of(f"Choice {answer.index}")) from None

    async def _violations(self, job: _Job[_Request], answers: Sequence[Answer]) -> list[Header]:
        """Check finished answers against what binds them: the client is told, the operator too."""
        told = b""
        name = job.model.names[0]
        for check in (check for answer in answers for check in _checks(job, answer)):
            kind = check.constraint.kind
            try:
                found = await self._checker.violation(check.constraint, check.text, job.record.body_bytes)
            except NotValidated as error:
                metrics.structured_not_validated_total.labels(name, kind).inc()
                _log.warning("an answer of model %s was not validated: %s", name, error)
                told = told or b"not-validated"
                continue
            if found is None:
                continue
            told = b"violation"
            if check.is_call:
                metrics.call_violations_total.labels(name).inc()
                _log.warning("a call by model %s violates the schema of its function: %s", name, found)
            else:
                metrics.structured_violations_total.labels(name, kind).inc()
                _log.error("an answer of model %s violates its %s constraint: %s", name, kind, found)
        return [(b"x-gateway-structured-output", told)] if told else []


def _size(answers: Sequence[Answer]) -> int:
    """How large a body is, in bytes, that takes as long as the log probabilities of answers that are not streamed."""
    unread = sum(answer.unread_bytes for answer in answers)
    of_prompt = [] if unread else answers[0].prompt_logprobs or []
    positions = itertools.chain(of_prompt, *(answer.logprobs for answer in answers))
    return unread * _READING + sum(len(position) for position in positions if position) * _ALTERNATIVE_BYTES


@contextlib.contextmanager
def _counted(lease: Lease, record: Record) -> Iterator[list[Answer]]:
    """While a request is at an instance; put its answers into the list in the end."""
    answers: list[Answer] = []
    try:
        yield answers
    finally:
        counts = usage(answers)
        lease.leave(counts["total_tokens"])
        record.prompt_tokens, record.completion_tokens = counts["prompt_tokens"], counts["completion_tokens"]
        record.parser_failures = sum(bool(answer.parser and answer.parser.has_failed) for answer in answers)


async def _fail(failure: Exception, ahead: Awaitable[None] | None) -> None:
    """Raise it when what is ahead of it has been written."""
    if ahead is not None:
        await ahead
    raise failure


def _checks(job: _Job[Any], answer: Answer) -> list[Check]:
    if _may_be_cut(job.plan.request):
        return []
    if job.checks is not None:
        return job.checks(answer)
    return [] if job.constraint is None else [Check(job.constraint, answer.text)]


def json_outputs(request: Any, contract: ModelContract, *, logprobs: bool) -> list[str]:
    """The JSON outputs that a request needs. One that is not asked for costs the engine nothing per token."""
    outputs = ["logprobs"] if logprobs else []
    if request.prompt_logprobs is not None:
        outputs.append("prompt_logprobs")
    if request.return_token_ids:
        outputs += ["token_ids", "prompt_token_ids"]
    ends_otherwise = request.stop or request.stop_token_ids or request.repetition_detection
    if ends_otherwise and "return_stop_reason" in contract.inputs:
        outputs.append("stop_reason")
    return outputs


def from_first_token(contract: ModelContract) -> dict[str, bool]:
    """The backend's inputs for a constraint that holds from the answer's first token. Unless told, an engine with a
    reasoning parser waits for an end of the thinking that may never come."""
    return {"reasoning_ended": True} if "reasoning_ended" in contract.inputs else {}


def token_bytes(model: ServedModel) -> TokenBytes:
    return None if model.tokenizer is None else model.tokenizer.token_bytes


def stop_reason(answer: Answer) -> dict[str, Any]:
    """vLLM's member of a choice that says which stop string or token ended it."""
    return {} if answer.stop_reason is None else {"stop_reason": answer.stop_reason}


def bug() -> ApiError:
    """For an exception that nobody foresaw: its trace goes to the log, a plain sentence to the client."""
    _log.exception("a request met an unexpected failure")
    return ApiError(500, "The gateway failed; the cause is in its log.", code="gateway_error")


def _may_be_cut(request: Any) -> bool:
    """Whether the client's own stop condition may have ended the answer in the middle of what it has to obey."""
    return bool(request.stop or request.stop_token_ids or request.repetition_detection)
