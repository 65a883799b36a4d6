"""`POST /v1/completions`: prompts in, their continuations out."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gateway.api.generate import Translation, from_first_token, json_outputs, stop_reason, token_bytes
from gateway.models import ServedModel
from gateway.openai import sse
from gateway.openai.errors import ApiError, bad_request
from gateway.openai.fields import COMPLETION, has_no_effect
from gateway.openai.schema import CompletionRequest, StreamOptions, parse_completion
from gateway.output.answer import Answer, usage_of
from gateway.output.logprobs import CompletionLogprobs, TokenBytes
from gateway.translate.constraints import PLACES
from gateway.translate.sampling import generates_nothing
from gateway.translate.structured import Constraint
from gateway.triton.contract import Backend, Delta, ModelContract, Prompt


class Completions:
    """The dialect of completions."""

    table = COMPLETION
    id_prefix = "cmpl"

    def parse(self, body: bytes) -> CompletionRequest:
        return parse_completion(body)

    def count_prompts(self, request: CompletionRequest) -> int:
        return len(_prompts(request))

    def let_go(self, request: CompletionRequest) -> object:
        prompt = request.prompt
        # Past the model, which nobody else may change.
        vars(request)["prompt"] = ""
        return prompt

    def again(
        self, request: CompletionRequest, model: ServedModel, contract: ModelContract, translation: Translation
    ) -> None:
        """They have no messages."""

    def without_messages(self, request: CompletionRequest) -> CompletionRequest:
        return request

    def translate(
        self, request: CompletionRequest, model: ServedModel, contract: ModelContract, constraint: Constraint | None
    ) -> Translation:
        prompts = _prompts(request)
        adds = request.add_special_tokens is not False
        texts = _echoed(request, prompts, model, contract) if request.echo else []
        sent: Sequence[Prompt] = prompts
        if contract.backend is Backend.STOCK:
            sent = [_for_stock(prompt, adds, model) for prompt in prompts]
        one = isinstance(request.prompt, str) or isinstance(request.prompt[0], int)

        def places(number: int) -> Mapping[str, str]:
            renamed = {"prompt": "prompt" if one else f"prompt[{number}]", "extra_args": "vllm_xargs", **PLACES}
            return renamed if request.prompt_logprobs is not None else renamed | {"prompt_logprobs": "logprobs"}

        outputs = json_outputs(request, contract, logprobs=request.logprobs is not None)
        if request.echo and request.logprobs is not None:
            # The prompt's tokens are part of the answer, and the first has no log probability to be named by.
            outputs += [name for name in ("prompt_logprobs", "prompt_token_ids") if name not in outputs]
        bound = None if generates_nothing(request) else constraint
        warnings = []
        if request.add_special_tokens and not isinstance(prompts[0], str):
            warnings.append(has_no_effect(COMPLETION["add_special_tokens"]))
        return Translation(
            sent,
            adds,
            outputs,
            places,
            partial(_Writer, request, model, texts),
            warnings,
            # All of the text is the answer, whatever it begins with.
            inputs=from_first_token(contract) if bound else {},
            constraint=bound,
        )


def _prompts(request: CompletionRequest) -> Sequence[Prompt]:
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    # A list of token ids is one prompt.
    return [prompt] if isinstance(prompt[0], int) else prompt


def _echoed(
    request: CompletionRequest, prompts: Sequence[Prompt], model: ServedModel, contract: ModelContract
) -> list[str]:
    """The text of each prompt, for an answer that begins with it."""
    if request.truncate_prompt_tokens is not None:
        raise bad_request("echo cannot show a prompt that truncate_prompt_tokens cuts; leave one of them out.", "echo")
    if request.logprobs is not None and "return_prompt_logprobs" not in contract.inputs:
        raise bad_request(
            "echo with logprobs needs the prompt's log probabilities, which the backend of this model does not give; "
            "leave out one of them, or install this project's vllm_backend.",
            "echo",
            "unsupported_parameter",
        )
    texts: list[str] = []
    for prompt in prompts:
        if isinstance(prompt, str):
            texts.append(prompt)
            continue
        if model.tokenizer is None:
            raise ApiError(400, model.no_tokenizer, param="echo", code="model_without_tokenizer")
        try:
            texts.append(model.tokenizer.decode(prompt, skip_special_tokens=False))
        except ValueError as error:
            raise bad_request(f"prompt: {error}.", "prompt", "invalid_value") from None
    return texts


def _for_stock(prompt: Prompt, adds_special_tokens: bool, model: ServedModel) -> str:
    """The stock backend takes a text alone, and its tokenizer always adds its special tokens."""
    if not isinstance(prompt, str):
        raise bad_request(
            "prompt must be text for Triton's stock vLLM backend, which takes no token ids; send text, or install "
            "this project's vllm_backend.",
            "prompt",
            "unsupported_parameter",
        )
    if adds_special_tokens or not model.added_bos:
        return prompt
    if not prompt.startswith(model.added_bos):
        raise bad_request(
            "add_special_tokens: false cannot be had from Triton's stock vLLM backend for a prompt without a BOS; "
            "remove it, or install this project's vllm_backend.",
            "add_special_tokens",
            "unsupported_parameter",
        )
    return prompt.removeprefix(model.added_bos)


class _Writer:
    """`texts` are the prompts' texts, for `echo`; else empty."""

    def __init__(
        self, request: CompletionRequest, model: ServedModel, texts: list[str], answer_id: str, created: int
    ) -> None:
        options = request.stream_options or StreamOptions()
        self._identity = answer_id, created, request.model
        self._events = sse.CompletionStream(
            *self._identity,
            usage_last=bool(options.include_usage),
            usage_always=bool(options.continuous_usage_stats),
        )
        self._request = request
        self._model = model
        self._texts = texts
        # With echo, a limit of 0 means: the prompt alone. The engine has generated one token all the same.
        self._prompt_alone = generates_nothing(request)
        self._begun: set[int] = set()
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def delta(self, answer: Answer, delta: Delta) -> bytes:
        text, outputs = delta.text, delta.outputs
        counts = self._counts(answer)
        begin = b""
        if answer.index not in self._begun:
            if not answer.completion_tokens:
                # The admission; what is known of the prompt comes with the first token.
                return b""
            begin = self._begin(answer, counts)
        if self._prompt_alone:
            return begin
        if not outputs:
            return begin + self._events.text(answer.index, text, counts) if text else begin
        logprobs = None
        if self._request.logprobs is not None and (positions := outputs.get("logprobs")):
            logprobs = self._logprobs_of(answer).add(positions)
        token_ids = outputs.get("token_ids") if self._request.return_token_ids else None
        if not text and not logprobs and not token_ids:
            return begin
        members = {"token_ids": token_ids} if token_ids is not None else {}
        return begin + self._events.text(answer.index, text, counts, logprobs, members)

    def around_text(self, answer: Answer) -> tuple[bytes, bytes] | None:
        if self._events.usage_always or self._prompt_alone:
            return None
        return self._events.around_text(answer.index)

    def finish(self, answer: Answer, reason: str) -> bytes:
        if self._prompt_alone:
            return self._events.finish(answer.index, "length", self._counts(answer))
        return self._events.finish(answer.index, reason, self._counts(answer), stop_reason(answer))

    def end(self, counts: Mapping[str, int]) -> bytes:
        return self._events.end(self._of_answer(counts))

    def whole(self, answers: Sequence[Answer], reasons: Sequence[str], counts: Mapping[str, int]) -> bytes:
        choices = [self._choice(answer, reason) for answer, reason in zip(answers, reasons, strict=True)]
        return sse.whole("text_completion", *self._identity, choices, self._of_answer(counts))

    def _choice(self, answer: Answer, reason: str) -> dict[str, Any]:
        text = self._texts[answer.prompt] if self._texts else ""
        logprobs = self._prompts_logprobs(answer)
        members: dict[str, Any] = {}
        if self._request.prompt_logprobs is not None:
            prompt_logprobs = answer.prompt_logprobs
            members["prompt_logprobs"] = None if prompt_logprobs is None else sse.one_by_one(prompt_logprobs)
        if self._request.return_token_ids:
            token_ids = [] if self._prompt_alone else answer.token_ids
            members |= {"prompt_token_ids": answer.prompt_token_ids, "token_ids": token_ids}
        if self._prompt_alone:
            return sse.completion_choice(answer.index, text, "length", logprobs, members)
        if self._request.logprobs is not None:
            own = self._logprobs_of(answer).add(answer.logprobs)
            logprobs = {key: logprobs[key] + own[key] for key in own} if logprobs else own
        return sse.completion_choice(answer.index, text + answer.text, reason, logprobs, members | stop_reason(answer))

    def _begin(self, answer: Answer, counts: Mapping[str, int] | None) -> bytes:
        self._begun.add(answer.index)
        members = {"prompt_token_ids": answer.prompt_token_ids} if self._request.return_token_ids else {}
        if not self._texts and not members:
            return b""
        text = self._texts[answer.prompt] if self._texts else ""
        return self._events.text(answer.index, text, counts, self._prompts_logprobs(answer), members)

    def _prompts_logprobs(self, answer: Answer) -> dict[str, Any] | None:
        if not self._texts or self._request.logprobs is None:
            return None
        text, tokenizer = self._texts[answer.prompt], self._model.tokenizer
        left_out: set[int] = set()
        if tokenizer is not None:
            # The special tokens that the tokenizer adds are not in the text; those that are written out are.
            left_out = {i for i in tokenizer.special_ids if tokenizer.token_strings([i])[0] not in text}
        of_prompt = self._reader(0, left_out, None if tokenizer is None else tokenizer.first_token_bytes)
        return of_prompt.add(answer.prompt_logprobs or (), answer.prompt_token_ids)

    def _logprobs_of(self, answer: Answer) -> CompletionLogprobs:
        reader = self._logprobs.get(answer.index)
        if reader is None:
            skips = self._request.skip_special_tokens is not False
            left_out = self._model.tokenizer.special_ids if skips and self._model.tokenizer else frozenset[int]()
            offset = len(self._texts[answer.prompt]) if self._texts else 0
            reader = self._logprobs[answer.index] = self._reader(offset, left_out)
        return reader

    def _reader(
        self, offset: int, left_out: set[int] | frozenset[int], first_token_bytes: TokenBytes = None
    ) -> CompletionLogprobs:
        request = self._request
        return CompletionLogprobs(
            token_bytes(self._model),
            request.logprobs or 0,
            every=request.logprob_token_ids is not None,
            as_token_ids=bool(request.return_tokens_as_token_ids),
            offset=offset,
            left_out=left_out,
            first_token_bytes=first_token_bytes,
        )

    def _counts(self, answer: Answer) -> Mapping[str, int] | None:
        if not self._events.usage_always:
            return None
        return self._of_answer(usage_of(answer.prompt_tokens, answer.completion_tokens))

    def _of_answer(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        return usage_of(counts["prompt_tokens"], 0) if self._prompt_alone else counts
