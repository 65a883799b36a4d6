"""The synthetic engine, behind the interface of `vllm_backend.engine`: each step gives every running request one token.

Runs inside Triton's stub, on the event loop, as vLLM's output handler does; imports no vLLM. A plain token costs it one
look at a table and one call, since what it costs counts as the backend's. What a request can ask for is in `script`;
the key `synthetic` of the deployment's `model.json` holds the engine's own settings (`Settings`).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.synthetic.script import TOKENS, WORDS, Script, read_script
from vllm_backend import contract
from vllm_backend.contract import Internal, InvalidArgument, RequestError, StartError, Unavailable
from vllm_backend.request import GenerateRequest

ENGINE_STOPPED = "the engine has stopped; unload the model and load it again."
_FAILED = "the engine ended the request with an error, as its prompt asks."
_USUAL_TOKENS = 16
_BYTES_PER_TOKEN = 4
_LIVENESS_INTERVAL = 0.1


@dataclass(frozen=True, slots=True)
class Settings:
    """`step_milliseconds`: from the start of one step to the start of the next; 0: as fast as it can.
    `seconds_to_stop`: what its shutdown takes."""

    step_milliseconds: float = 5.0
    seconds_to_stop: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """As vLLM's `Logprob`."""

    logprob: float
    rank: int | None
    decoded_token: str | None


Logprobs = Sequence[dict[int, TokenLogprob] | None]


@dataclass(frozen=True, slots=True)
class Output:
    """As vLLM's `CompletionOutput`: the tokens since the last one."""

    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


Put = Callable[[Output | RequestError], None]
"""Takes an output, or why there will be no other one."""

_PLAIN = tuple(Output(word, (number,)) for number, word in enumerate(WORDS))
"""Shared by all requests."""


class Generation:
    """An admitted request: its prompt, and its outputs in order."""

    def __init__(self, engine: "Engine", request: GenerateRequest, script: Script) -> None:
        prompt = request.prompt
        # Nobody counts them: about as many as a tokenizer makes of it.
        self.prompt_token_ids: Sequence[int] = (
            range(1 + len(prompt) // _BYTES_PER_TOKEN) if isinstance(prompt, str) else prompt
        )
        sampling = request.sampling
        self._engine = engine
        self._script = script
        self._tokens = 0
        limit = sampling.get("max_tokens", _USUAL_TOKENS)
        self._limit: int = TOKENS if limit is None else limit
        self._logprobs = request.token_logprobs or contract.CUMULATIVE_LOGPROB in request.outputs
        self._wants_prompt_logprobs = "prompt_logprobs" in sampling
        self._prompt_logprobs: Logprobs | None = None
        self._steps_to_wait = script.wait
        self._is_plain = script.is_plain and request.stream and not self._logprobs and not self._wants_prompt_logprobs
        self._whole: list[Output] | None = None if request.stream else []
        self._put: Put = self._collect
        self._waiting: Output | RequestError | None = None
        self._arrived = asyncio.Event()

    async def next_output(self) -> Output:
        """The next output, or all that have come since the last call as one. Raises RequestError."""
        while (waiting := self._waiting) is None:
            self._arrived.clear()
            await self._arrived.wait()
        self._waiting = None
        if isinstance(waiting, RequestError):
            raise waiting
        return waiting

    def follow(self, put: Put) -> None:
        """From now on `put` is called with every output as it comes, and at once with what has come until now."""
        waiting, self._waiting = self._waiting, None
        self._put = put
        if waiting is not None:
            put(waiting)

    def take_prompt_logprobs(self) -> Logprobs | None:
        """Once, when the first output has come."""
        taken, self._prompt_logprobs = self._prompt_logprobs, None
        return taken

    async def abort(self) -> None:
        self._engine.remove(self)

    def fail(self, error: RequestError) -> None:
        self._put(error)

    def step(self) -> bool:
        """Gives the next token, if it is time for one; whether the request is over."""
        number = self._tokens
        if not self._is_plain:
            return self._step_by_script(number)
        self._tokens = tokens = number + 1
        output = _PLAIN[(self._script.first + number) % TOKENS]
        if tokens < self._limit:
            self._put(output)
            return False
        self._put(replace(output, finish_reason="length"))
        return True

    def _step_by_script(self, number: int) -> bool:
        script = self._script
        if self._steps_to_wait > 0:
            self._steps_to_wait -= 1
            return False
        self._steps_to_wait = script.pace - 1
        if number == script.die_after:
            self._engine.die()
            return True
        if number == script.fail_after:
            self.fail(Internal(_FAILED))
            return True
        if number == 0 and self._wants_prompt_logprobs:
            ids = self.prompt_token_ids
            self._prompt_logprobs = [None, *({token: _logprob(token, f" {token}")} for token in ids[1:])]
        self._tokens = number + 1
        is_last = self._tokens >= self._limit
        token, text = (script.first + number) % TOKENS, script.token(number)
        logprobs = [{token: _logprob(token, script.words[token])}] if self._logprobs else None
        total = -0.5 * self._tokens if self._logprobs else None
        output = Output(text, (token,), total, logprobs, "length" if is_last else None)
        if self._whole is None:
            self._put(output)
        else:
            self._whole.append(output)
            if is_last:
                self._put(_joined(self._whole))
        return is_last

    def _collect(self, output: Output | RequestError) -> None:
        """As vLLM's collector: whoever is behind finds one output, with all that has come."""
        waiting = self._waiting
        if isinstance(waiting, Output) and isinstance(output, Output):
            output = _joined([waiting, output])
        self._waiting = output
        self._arrived.set()


class Engine:
    """On one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._interval = settings.step_milliseconds / 1000
        self._seconds_to_stop = settings.seconds_to_stop
        self._running: dict[Generation, None] = {}
        self._something_runs = asyncio.Event()
        self._is_dead = False
        self._task = asyncio.get_running_loop().create_task(self._keep_stepping())

    @classmethod
    async def start(cls, values: dict[str, Any]) -> "Engine":
        """`values` are those of the deployment's `model.json`. Raises StartError."""
        try:
            return cls(Settings(**values.get("synthetic", {})))
        except TypeError as error:
            raise StartError(f"model.json: synthetic: {error}.") from None

    @property
    def unfinished(self) -> int:
        """How many requests it has not finished."""
        return len(self._running)

    async def stopped(self) -> None:
        """Returns when it has died."""
        while not self._is_dead:  # noqa: ASYNC110
            await asyncio.sleep(_LIVENESS_INTERVAL)

    async def admit(self, request: GenerateRequest) -> Generation:
        """Raises RequestError."""
        try:
            script = read_script(request.prompt) if isinstance(request.prompt, str) else Script()
        except ValueError as error:
            raise InvalidArgument("prompt", f"{error}.") from None
        if script.admission_seconds:
            await asyncio.sleep(script.admission_seconds)
        if self._is_dead:
            raise Unavailable(ENGINE_STOPPED)
        if script.step_milliseconds is not None:
            self._interval = script.step_milliseconds / 1000
        generation = Generation(self, request, script)
        self._running[generation] = None
        self._something_runs.set()
        return generation

    def remove(self, generation: Generation) -> None:
        self._running.pop(generation, None)

    def die(self) -> None:
        self._is_dead = True
        running, self._running = self._running, {}
        for generation in running:
            generation.fail(Unavailable(ENGINE_STOPPED))

    async def shutdown(self) -> None:
        self._task.cancel()
        await asyncio.sleep(self._seconds_to_stop)

    async def _keep_stepping(self) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if not self._running:
                self._something_runs.clear()
                await self._something_runs.wait()
            now = clock()
            # A step that comes late is not made up for: an engine that had to wait is no faster afterwards.
            due = max(due + self._interval, now)
            await asyncio.sleep(due - now)
            ended = [generation for generation in list(self._running) if generation.step()]
            for generation in ended:
                self._running.pop(generation, None)


def _logprob(token: int, text: str) -> TokenLogprob:
    return TokenLogprob(-0.5 - token / TOKENS, 1, text)


def _joined(outputs: Sequence[Output]) -> Output:
    last = outputs[-1]
    logprobs = None if last.logprobs is None else [one for output in outputs for one in output.logprobs or ()]
    tokens = [token for output in outputs for token in output.token_ids]
    return replace(last, text="".join(output.text for output in outputs), token_ids=tokens, logprobs=logprobs)
