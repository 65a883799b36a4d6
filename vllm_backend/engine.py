"""vLLM behind a small interface: start, admit a request, read its outputs, abort it, shut down.

With `reasoning.py` all that imports vLLM, written for the release in `versions.py`. Nothing of Triton is known here.
Every exception that leaves it is one of `contract`'s, so a client never sees vLLM's own types or a stack trace."""

import asyncio
import dataclasses
import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.inputs import TextPrompt, TokensPrompt
from vllm.logprobs import PromptLogprobs
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.platforms import current_platform
from vllm.renderers.inputs.preprocess import parse_model_prompt
from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, StructuredOutputsParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import RequestOutputCollector

from vllm_backend import contract, processors, reasoning
from vllm_backend.contract import Internal, InvalidArgument, RequestError, StartError, Unavailable
from vllm_backend.request import GenerateRequest, Truncation
from vllm_backend.sampling import constraint_kind, place_of

ENGINE_STOPPED = "the engine has stopped; unload the model and load it again."

_NESTED = {"structured_outputs": StructuredOutputsParams, "repetition_detection": RepetitionDetectionParams}
"""The sampling parameters that are an object of vLLM's own."""

_ARGUMENT = re.compile(r"extra_args(\.[\w-]+)+")
"""Begins the refusal of a processor that says where the wrong argument is."""

_FIRST_TOKEN_TIMEOUT = 120.0
"""Seconds for the very first token. vLLM has compiled and warmed up its kernels by then."""

_LIVENESS_INTERVAL = 0.5
"""Seconds between two looks at whether the engine still runs. Open requests learn of its end at once, without this."""

_SHUTDOWN_TIMEOUT = 5.0
"""Seconds for the engine's processes to end before they are killed."""


def engine_args(values: dict[str, Any]) -> AsyncEngineArgs:
    """The engine arguments of a `model.json`. Raises StartError."""
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    if unknown := sorted(set(values) - known):
        raise StartError(f"model.json: {', '.join(unknown)}: not among the installed vLLM's engine arguments.")
    try:
        return AsyncEngineArgs(**values)
    except Exception as error:
        raise StartError(f"model.json: {_one_line(error)}") from error


class Generation:
    """An admitted request: its prompt, and its outputs in order."""

    def __init__(
        self,
        llm: AsyncLLM,
        request_id: str,
        queue: RequestOutputCollector,
        request: GenerateRequest,
        prompt_token_ids: list[int],
    ) -> None:
        self.prompt_token_ids = prompt_token_ids
        self._prompt_logprobs: PromptLogprobs | None = None
        self._llm = llm
        self._request_id = request_id
        self._queue = queue
        self._constraint = constraint_kind(request.sampling)

    async def next_output(self) -> CompletionOutput:
        """The next output: when streaming, the tokens since the last one. Its `finish_reason` is set in the last one.

        Raises RequestError if the request cannot be finished.
        """
        try:
            # Without an await while there is something to read: fewer switches of task under load.
            result = self._queue.get_nowait() or await self._queue.get()
        except Exception as error:
            raise _failure(error) from error
        return self._output(result)

    def follow(self, put: Callable[[CompletionOutput | RequestError], None]) -> None:
        """From now on `put` is called with every output as soon as there is one, and at once with what has come until
        now; with an error in its place if the request cannot be finished. On the event loop, in the midst of the
        engine's own work for a step: it wakes no task, must be quick, and must not raise."""

        def take(result: RequestOutput | Exception) -> None:
            try:
                if isinstance(result, Exception):
                    raise _failure(result) from result
                output: CompletionOutput | RequestError = self._output(result)
            except RequestError as error:
                output = error
            put(output)

        waiting, self._queue.output = self._queue.output, None
        self._queue.put = take
        if waiting is not None:
            take(waiting)

    def take_prompt_logprobs(self) -> PromptLogprobs | None:
        """The logprobs of the prompt's tokens if an output has brought them since the last call: the first one does,
        when they were asked for."""
        taken, self._prompt_logprobs = self._prompt_logprobs, None
        return taken

    async def abort(self) -> None:
        """Frees what the engine holds for this request. For requests that have not finished."""
        await self._llm.abort(self._request_id)

    def _output(self, result: RequestOutput) -> CompletionOutput:
        (output,) = result.outputs
        if output.finish_reason == "error":
            raise self._engine_error()
        if result.prompt_logprobs:
            self._prompt_logprobs = result.prompt_logprobs
        return output

    def _engine_error(self) -> Internal:
        if self._constraint is None:
            return Internal("the engine ended the request with an error and gave no reason.")
        return Internal(
            f"the engine ended the request, which is constrained by structured_outputs.{self._constraint}, "
            "with an error and gave no reason."
        )


class Engine:
    """One vLLM engine. All its coroutines run on the event loop on which it was started."""

    def __init__(
        self, llm: AsyncLLM, tasks: tuple[str, ...], finds_reasoning_end: bool, processed: frozenset[str]
    ) -> None:
        """`processed`: the names in `extra_args` that the engine's logits processors read."""
        self._llm = llm
        self._tasks = tasks
        self._processed = processed
        self._finds_reasoning_end = finds_reasoning_end
        self._context_length: int = llm.model_config.max_model_len
        # Threads and not processes: of a prompt's preparation, tokenising is nine tenths, and the library lets others
        # run meanwhile. As many as vLLM's own front end would have, whose renderer holds a tokenizer for each.
        workers = llm.model_config.renderer_num_workers
        self._preparing = ThreadPoolExecutor(workers, thread_name_prefix="prepare-request")
        # On the CPU, torch's generators cannot be rewound, which vLLM does after each chunk of a prompt but the last:
        # a seeded request whose prompt is cut would end the engine.
        self._refuses_seed = current_platform.is_cpu() and llm.scheduler_config.enable_chunked_prefill

    @classmethod
    async def start(cls, args: AsyncEngineArgs) -> "Engine":
        """Starts the engine, and generates one token so that a started engine is known to answer. Raises StartError."""
        try:
            config = args.create_engine_config(UsageContext.ENGINE_CONTEXT)
            finds_reasoning_end = reasoning.finds_end(config)
            processed = processors.configure(config)
            llm = AsyncLLM.from_vllm_config(
                config, enable_log_requests=args.enable_log_requests, disable_log_stats=args.disable_log_stats
            )
        except StartError:
            raise
        except Exception as error:
            raise StartError(
                f"vLLM's engine for {args.model} did not start: {_one_line(error)} (the cause is in the log above)"
            ) from error
        try:
            engine = cls(llm, await llm.get_supported_tasks(), finds_reasoning_end, processed)
            await asyncio.wait_for(engine._generate_one_token(), _FIRST_TOKEN_TIMEOUT)
        except TimeoutError:
            llm.shutdown()
            raise StartError(
                f"vLLM's engine for {args.model} started but generated no token in {_FIRST_TOKEN_TIMEOUT:.0f} s."
            ) from None
        except Exception as error:
            llm.shutdown()
            raise StartError(
                f"vLLM's engine for {args.model} started but generated no token: {_one_line(error)} "
                "(the cause is in the log above)"
            ) from error
        return engine

    @property
    def unfinished(self) -> int:
        """How many requests the engine has not finished."""
        return int(self._llm.get_num_unfinished_requests())

    async def stopped(self) -> None:
        """Returns when the engine has died. vLLM has no event for it, only a flag."""
        while not self._llm.errored:  # noqa: ASYNC110
            await asyncio.sleep(_LIVENESS_INTERVAL)

    async def admit(self, request: GenerateRequest) -> Generation:
        """Validates a request in full, and queues it. Raises RequestError."""
        # An id of our own: one that a client chose could be that of another client's request.
        request_id = uuid.uuid4().hex
        loop = asyncio.get_running_loop()
        # Tokenising and compiling a grammar take their time: not on the loop, which serves the tokens of all requests.
        engine_request = await loop.run_in_executor(self._preparing, self._prepare, request, request_id)
        try:
            queue = await self._llm.add_request(request_id, engine_request, engine_request.sampling_params)
        except EngineDeadError as error:
            raise Unavailable(ENGINE_STOPPED) from error
        except GracefulHTTPError as error:
            raise Unavailable(_one_line(error)) from error
        except asyncio.CancelledError:
            # vLLM may have registered the request already.
            await self._llm.abort(request_id)
            raise
        return Generation(self._llm, request_id, queue, request, engine_request.prompt_token_ids)

    async def shutdown(self) -> None:
        """Ends the engine's processes; whatever it still generates is lost. Blocks the loop, which has nothing else
        to do then."""
        self._preparing.shutdown(wait=False, cancel_futures=True)
        if self._llm.output_handler is not None:
            # Before its engine goes, lest it report that as a failure.
            self._llm.output_handler.cancel()
        self._llm.shutdown(timeout=_SHUTDOWN_TIMEOUT)
        # vLLM shuts down once more in a destructor, which must not be left to the end of the interpreter.
        del self._llm

    async def _generate_one_token(self) -> None:
        request = GenerateRequest(
            prompt=[0],
            add_special_tokens=False,
            truncation=None,
            cache_salt=None,
            session_id=None,
            reasoning_ended=None,
            priority=0,
            stream=False,
            prepend_prompt=False,
            send_admission=False,
            outputs=frozenset(),
            token_logprobs=False,
            sampling={"max_tokens": 1},
        )
        await (await self.admit(request)).next_output()

    def _prepare(self, request: GenerateRequest, request_id: str) -> EngineCoreRequest:
        self._check_features(request)
        prompt = self._tokenize(request)
        params = _sampling_params(request)
        if params.watermarking and not self._llm.input_processor.resolve_watermarking(params):
            # vLLM would answer without one, and only its log would say so.
            raise InvalidArgument(
                place_of("watermarking"),
                "the engine has no watermark for this request: it needs a watermark_config in model.json "
                "and a temperature above 0.",
            )
        try:
            prepared = self._llm.input_processor.process_inputs(
                request_id,
                prompt,
                params,
                supported_tasks=self._tasks,
                priority=request.priority,
                session_id=request.session_id,
            )
        except (VLLMClientError, ValueError) as error:
            raise _refusal(error, request) from error
        except RequestError:
            raise
        except Exception as error:
            raise Internal("the request could not be prepared; the cause is in the server's log.") from error
        prepared.reasoning_ended = request.reasoning_ended
        if request.reasoning_ended is False:
            prepared.reasoning_parser_kwargs = reasoning.THINKING
        return prepared

    def _check_features(self, request: GenerateRequest) -> None:
        """Refuses what this engine is not set up for, where vLLM would fail, or go on as if it had not been asked."""
        if self._refuses_seed and "seed" in request.sampling:
            raise InvalidArgument(
                place_of("seed"),
                "not supported on the CPU while chunked prefill is on: "
                "set enable_chunked_prefill to false in model.json, "
                "and max_num_batched_tokens to at least max_model_len.",
            )
        config = self._llm.vllm_config
        if request.priority != 0 and config.scheduler_config.policy != "priority":
            raise InvalidArgument(
                contract.PRIORITY,
                f"must be 0 or absent, since the engine schedules by {config.scheduler_config.policy}: "
                "set scheduling_policy to priority in model.json.",
            )
        if processors.CONSTRAINTS in request.sampling.get("extra_args", ()) and (
            processors.CONSTRAINTS not in self._processed
        ):
            # vLLM ignores what no processor reads.
            raise InvalidArgument(
                place_of(f"extra_args.{processors.CONSTRAINTS}"),
                "the engine has no logits processor for it: name one in model.json, "
                '"logits_processors": ["logits_processors:ConstraintProcessor"].',
            )
        if "prompt_logprobs" in request.sampling and config.cache_config.kv_sharing_fast_prefill:
            raise InvalidArgument(
                place_of("prompt_logprobs"),
                "not supported with kv_sharing_fast_prefill, which makes them wrong: take it out of model.json.",
            )
        if request.reasoning_ended is False and constraint_kind(request.sampling) is not None:
            self._check_reasoning()
        if "logprob_token_ids" in request.sampling and not config.use_v2_model_runner:
            # Its sampler then gives every request of the batch these logprobs in place of its own.
            raise InvalidArgument(
                place_of("logprob_token_ids"),
                "not supported by vLLM's V1 model runner, where it spoils the logprobs of other requests: "
                "use logprobs.",
            )

    def _check_reasoning(self) -> None:
        """Refuses a constraint that is to begin after the reasoning where it would hold from the start instead."""
        structured = self._llm.vllm_config.structured_outputs_config
        if structured.enable_in_reasoning:
            why = "constrains the reasoning too: take structured_outputs_config.enable_in_reasoning out of model.json."
        elif not structured.reasoning_parser:
            why = "has no reasoning parser: set structured_outputs_config.reasoning_parser in model.json."
        elif not self._finds_reasoning_end:
            why = f"has the reasoning parser {structured.reasoning_parser}, which does not tell where reasoning ends."
        else:
            return
        raise InvalidArgument(
            contract.REASONING_ENDED, f"must be true or absent with a structured output, since the engine {why}"
        )

    def _tokenize(self, request: GenerateRequest) -> Any:
        """The prompt as vLLM's engine input, known to leave room for at least one token."""
        renderer = self._llm.renderer
        options: dict[str, Any] = {"add_special_tokens": request.add_special_tokens}
        if request.truncation is not None:
            room = self._context_length - 1
            options["truncate_prompt_tokens"] = room if request.truncation.tokens == -1 else request.truncation.tokens
            options["truncation_side"] = request.truncation.side
        if isinstance(request.prompt, str):
            prompt: TextPrompt | TokensPrompt = TextPrompt(prompt=self._shortened(request.prompt, request.truncation))
        else:
            prompt = TokensPrompt(prompt_token_ids=request.prompt)
        if request.cache_salt is not None:
            prompt["cache_salt"] = request.cache_salt
        try:
            tokenization = renderer.default_cmpl_tok_params.with_kwargs(**options)
        except VLLMClientError as error:
            raise InvalidArgument(contract.TRUNCATE_PROMPT_TOKENS, _one_line(error)) from error
        try:
            (engine_input,) = renderer.render_cmpl([parse_model_prompt(self._llm.model_config, prompt)], tokenization)
            tokens = engine_input["prompt_token_ids"]
            if not isinstance(request.prompt, str):
                try:
                    renderer.validate_token_ids(tokens)
                except VLLMClientError as error:
                    raise InvalidArgument(contract.INPUT_IDS, _one_line(error)) from error
        except (VLLMClientError, ValueError) as error:
            raise InvalidArgument("prompt", _one_line(error)) from error
        if not tokens:
            raise InvalidArgument("prompt", "is empty.")
        if len(tokens) >= self._context_length:
            raise InvalidArgument(
                "prompt",
                f"has {len(tokens)} tokens, which leaves no room for an answer in the model's context of "
                f"{self._context_length} tokens.",
            )
        return engine_input

    def _shortened(self, text: str, truncation: Truncation | None) -> str:
        """The text without what a truncation cuts off for certain. vLLM does so itself when a side is given, and else
        tokenises all of it, for which megabytes of text take seconds."""
        tokenizer = self._llm.renderer.tokenizer
        if truncation is None or tokenizer is None:
            return text
        longest = self._context_length * tokenizer.max_chars_per_token
        if len(text) <= longest:
            return text
        return text[-longest:] if (truncation.side or tokenizer.truncation_side) == "left" else text[:longest]


def _failure(error: Exception) -> RequestError:
    """What a client is told of an error that vLLM gives in place of an output."""
    if isinstance(error, EngineDeadError):
        return Unavailable(ENGINE_STOPPED)
    return Internal("the engine failed on this request; the cause is in the server's log.")


def _sampling_params(request: GenerateRequest) -> SamplingParams:
    arguments = dict(request.sampling)
    for key, make in _NESTED.items():
        if key in arguments:
            try:
                arguments[key] = make(**arguments[key])
            except (VLLMClientError, ValueError) as error:
                raise InvalidArgument(place_of(key), _one_line(error)) from error
    try:
        params = SamplingParams(**arguments)
    except (VLLMClientError, ValueError) as error:
        raise _refusal(error, request) from error
    params.output_kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    # The object is this request's alone, so vLLM need not copy it in depth.
    params.skip_clone = True
    return params


def _refusal(error: Exception, request: GenerateRequest) -> InvalidArgument:
    """The place of a refusal by vLLM: the parameter that it reports, or the one that its text begins with. A refusal
    of a grammar names none."""
    text = _one_line(error)
    if argument := _ARGUMENT.match(text):
        # A logits processor's.
        sentence = text[argument.end() :]
        return InvalidArgument(place_of(argument[0]), sentence[2:] if sentence.startswith(": ") else text)
    place = getattr(error, "parameter", None)
    if place not in request.sampling:
        named = [key for key in request.sampling if key in text.split(" ", 4)[:4]]
        if named:
            place = named[0]
        elif "structured_outputs" in request.sampling:
            place = "structured_outputs"
        else:
            return InvalidArgument(contract.SAMPLING_PARAMETERS, text)
    return InvalidArgument(place_of(place), text)


def _one_line(error: Exception) -> str:
    """What an exception says, as one sentence on one line."""
    if isinstance(error, RequestError):
        return error.text
    # VLLMClientError's str() appends the parameter and its value, which the text already holds.
    text = str(error.args[0]) if isinstance(error, VLLMClientError) and error.args else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return f"{type(error).__name__}."
    if isinstance(error, VLLMClientError):
        # A grammar's error needs its further lines: they show where the grammar is wrong.
        line = " ".join(lines)
    elif "validation error" in lines[0] and len(lines) > 2:
        # pydantic: a heading, the field, the reason with its type and input in brackets, a link.
        line = f"{lines[1]}: {lines[2].split(' [type=')[0]}"
    else:
        line = lines[0]
    return line if line[-1] in ".!?" else f"{line}."
