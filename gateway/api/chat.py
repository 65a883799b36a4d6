"""`POST /v1/chat/completions`: messages in, the assistant's message out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from gateway.api.generate import Again, Check, Translation, from_first_token, json_outputs, stop_reason, token_bytes
from gateway.api.relay import native_telling
from gateway.models import ServedModel
from gateway.openai import sse
from gateway.openai.errors import bad_request
from gateway.openai.fields import CHAT, has_no_effect
from gateway.openai.schema import ChatRequest, Message, StreamOptions, parse_chat
from gateway.output.answer import Answer, usage_of
from gateway.output.events import CallArguments, CallStart, Content, Event, OutputParser, Reasoning
from gateway.output.first_call import FirstCall
from gateway.output.logprobs import ChatLogprobs, Position
from gateway.output.parsers import finish_reason
from gateway.output.reasoning import MARKS
from gateway.output.thinking import Withheld, without_thinking
from gateway.output.tools import FAMILIES
from gateway.translate.after_reasoning import after_analysis, after_reasoning
from gateway.translate.call_tag import call_tag
from gateway.translate.constraints import PLACES, binds_first_token, both_bind
from gateway.translate.prompt import ChatTemplate
from gateway.translate.structured import Constraint
from gateway.translate.tool_choice import ToolUse, calls_constraint, tool_use, without_effect
from gateway.triton.contract import Backend, Delta, ModelContract

_T = TypeVar("_T")
_NO_TOOLS = tool_use(None, None, None)
_NO_OPTIONS = StreamOptions()
_PLACES = {"prompt": "messages", "logprobs": "top_logprobs", "extra_args": "vllm_xargs", **PLACES}


class Chat:
    """The dialect of chat completions."""

    table = CHAT
    id_prefix = "chatcmpl"

    def parse(self, body: bytes) -> ChatRequest:
        return parse_chat(body)

    def count_prompts(self, request: ChatRequest) -> int:
        return 1

    def let_go(self, request: ChatRequest) -> object:
        messages = request.messages
        # Past the model, which nobody else may change.
        vars(request)["messages"] = []
        return messages

    def translate(
        self, request: ChatRequest, model: ServedModel, contract: ModelContract, constraint: Constraint | None
    ) -> Translation:
        template = model.chat_template()
        use = tool_use(request.tools, request.tool_choice, request.parallel_tool_calls)
        if use.tools and not use.is_bound:
            _check_can_call(model, template)
        prompt = template.render(
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            documents=request.documents,
            tools=use.tools,
            reasoning_effort=request.reasoning_effort,
            chat_template_kwargs=request.chat_template_kwargs,
        )
        if binds_first_token(request.constraints):
            _check_begins_with_answer(model, prompt.text)
        text = prompt.text
        # The stock backend has the tokenizer add its BOS to a prompt that already begins with one.
        if contract.backend is Backend.STOCK and model.added_bos and not request.add_special_tokens:
            text = text.removeprefix(model.added_bos)
        needs_special_tokens = model.output.needs_special_tokens(bool(use.tools))
        warnings = [
            *prompt.warnings,
            *without_effect(use, request.tools, request.tool_choice, request.parallel_tool_calls),
            *_without_effect(request, model, needs_special_tokens),
        ]
        if use.is_bound:
            if request.constraints is not None:
                raise both_bind("tool_choice")
            if constraint is not None:
                warnings.append(f"{constraint.place} was ignored: tool_choice binds the answer to be a call")
            constraint = calls_constraint(use, request.tools or ())
        elif use.tools and constraint is not None:
            warnings.append(f"tools cannot be called: {constraint.place} binds the answer")
        of_text = constraint
        warnings += _not_strict(use, model, of_text)
        if use.tools and constraint is None:
            constraint = _free_calls(use, model)
            if binds_first_token(request.constraints):
                warnings.append("tools cannot be called: constraints.catalog binds the answer")
                constraint = None
            elif constraint is not None and request.constraints is not None:
                warnings.append("calls are not kept valid: constraints binds the answer")
                constraint = None
        translation = Translation(
            [text],
            bool(request.add_special_tokens),
            json_outputs(request, contract, logprobs=bool(request.logprobs)),
            lambda _: _PLACES,
            partial(_Writer, request, model, prompt.text, use),
            warnings,
            parser=partial(_parser, request, model, prompt.text, use),
            # The marks of calls and of thinking may be special tokens.
            sampling={"skip_special_tokens": False} if needs_special_tokens else {},
            inputs=from_first_token(contract) if constraint is not None else {},
            constraint=constraint,
            is_optional=of_text is None,
            checks=partial(_checks, use, of_text) if model.output.reasoning_parser or use.tools else None,
        )
        if model.output.reasoning_parser is not None:
            _tell_tokens_apart(translation, request, model, contract, prompt.text)
        # The tag of free calls allows any text ahead of a call, thinking too.
        if of_text is not None and (model.output.reasoning_parser is not None or model.output.is_harmony):
            _bind_after_thinking(translation, model, contract, prompt.text)
        return translation

    def without_messages(self, request: ChatRequest) -> ChatRequest:
        return request.model_copy(update={"messages": []})

    def again(
        self, request: ChatRequest, model: ServedModel, contract: ModelContract, translation: Translation
    ) -> Again | None:
        says_more = request.tools or request.tool_choice is not None or request.constraints is not None
        repeats = request.echo or request.continue_final_message or request.return_prompt_text
        thinks = model.output.reasoning_parser is not None or model.output.is_harmony
        if says_more or repeats or thinks or translation.constraint is not None:
            return None
        render = model.chat_template().of_texts(
            add_generation_prompt=request.add_generation_prompt,
            documents=request.documents,
            reasoning_effort=request.reasoning_effort,
            chat_template_kwargs=request.chat_template_kwargs,
        )
        bos = model.added_bos if contract.backend is Backend.STOCK and not request.add_special_tokens else ""
        add_special_tokens, outputs, places = translation.add_special_tokens, translation.outputs, translation.places
        warnings, sampling = translation.warnings, translation.sampling
        writer = partial(_Writer, request, model, "", _NO_TOOLS)

        def translate(prompt: str) -> Translation:
            return Translation([prompt], add_special_tokens, outputs, places, writer, warnings, sampling=sampling)

        telling = native_telling(writer("", 0).telling())
        identity = sse.Identity(sse.ChatStream.kind, request.model)
        return Again(lambda messages: render(messages).removeprefix(bos), translate, writer, identity, telling)


def _without_effect(request: ChatRequest, model: ServedModel, needs_special_tokens: bool) -> list[str]:
    idle = []
    if request.echo and not _last_answer(request.messages):
        idle.append("echo")
    if request.include_reasoning is False and model.output.reasoning_parser is None:
        idle.append("include_reasoning")
    if request.skip_special_tokens and needs_special_tokens:
        idle.append("skip_special_tokens")
    return [has_no_effect(CHAT[name]) for name in idle]


def _not_strict(use: ToolUse, model: ServedModel, of_text: Constraint | None) -> list[str]:
    """Warnings of functions that are to be called by their schema, where nothing makes the model do that."""
    if of_text is not None or model.tool_structural_tag:
        return []
    return [
        f"strict of the function {tool.function.name} is not enforced where the model is free to call (its arguments "
        "are checked)"
        for tool in use.tools
        if tool.function.strict
    ]


def _tell_tokens_apart(
    translation: Translation, request: ChatRequest, model: ServedModel, contract: ModelContract, prompt: str
) -> None:
    """The thinking's tokens from the others, which are counted, and may be hidden."""
    known = model.tokenizer is not None and model.tokenizer.knows_bytes and "return_token_ids" in contract.inputs
    if not known and request.return_token_ids and request.include_reasoning is False:
        raise bad_request(
            "include_reasoning: false cannot leave the thinking's token ids out without the model's tokenizer.json "
            "(setting models[].tokenizer); leave out return_token_ids.",
            "include_reasoning",
            "unsupported_parameter",
        )
    if known and "token_ids" not in translation.outputs:
        translation.outputs.append("token_ids")
    if known or request.logprobs:
        translation.thinking = partial(model.output.thinking_tokens, prompt, token_bytes(model))


def _free_calls(use: ToolUse, model: ServedModel) -> Constraint | None:
    """What keeps calls valid that the model is free to make, where that is switched on and can be had."""
    family = FAMILIES.get(model.output.tool_parser or "")
    if not model.tool_structural_tag or family is None or family.frame is None:
        return None
    return call_tag(use, family.frame)


def _bind_after_thinking(translation: Translation, model: ServedModel, contract: ModelContract, prompt: str) -> None:
    """A constraint binds the answer and not the thinking before it."""
    if model.output.reasoning_is_over(prompt):
        return
    if model.output.begins_in_reasoning(prompt) and "reasoning_ended" in contract.inputs:
        translation.inputs = {"reasoning_ended": False}
        # The client knows nothing of this input: what cannot be had is what binds the answer.
        assert translation.constraint is not None
        places = _PLACES | {"reasoning_ended": translation.constraint.place}
        translation.places = lambda _: places
        return
    # Where the model itself opens its thinking, or does not, the engine would wait for an end that may never come.
    translation.engine_form = partial(_one_grammar, model, prompt)


def _one_grammar(model: ServedModel, prompt: str, constraint: Constraint) -> Constraint:
    """Of the thinking and what binds the answer behind it, for an engine that is not told when the thinking ends."""
    added_tokens = None if model.tokenizer is None else model.tokenizer.added_tokens
    if model.output.is_harmony:
        form = after_analysis(constraint, prompt, model.grammar_backend, added_tokens)
    else:
        marks = MARKS[model.output.reasoning_parser or ""]
        opened = model.output.begins_in_reasoning(prompt)
        form = after_reasoning(constraint, marks, opened, model.grammar_backend, added_tokens)
    if form is None:
        raise bad_request(
            f"{constraint.place}: the engine's grammar backend ({model.grammar_backend or 'an unknown one'}) cannot "
            "bind an answer to this behind a thinking of which it is not told where it ends. Use a JSON schema, switch "
            "the thinking off in chat_template_kwargs, or have the engine use guidance (structured_outputs_backend).",
            constraint.place,
            "unsupported_parameter",
        )
    return form


def _checks(use: ToolUse, of_text: Constraint | None, answer: Answer) -> list[Check]:
    """Calls by the schema of their function, other text by what binds it: what was thought before either is bound by
    nothing."""
    if answer.parser is None:
        return [] if of_text is None else [Check(of_text, answer.text)]
    message, schemas = answer.message, use.schemas
    calls = [
        # A function that is not offered has no arguments that could be right.
        Check(Constraint("json", schemas.get(call.name, False), "tools"), call.arguments, not use.is_bound)
        for call in message.calls
    ]
    # Of an answer that is bound to be calls, they leave no other text.
    if of_text is None or (use.is_bound and calls and not message.content.strip()):
        return calls
    return [*calls, Check(of_text, message.content)]


def _check_begins_with_answer(model: ServedModel, prompt: str) -> None:
    """An entry of a catalogue in place of the thinking would be taken for the thinking."""
    if model.output.is_harmony or model.output.begins_in_reasoning(prompt):
        raise bad_request(
            "constraints.catalog binds the answer from its first token, and this model begins with its thinking; "
            "switch the thinking off in chat_template_kwargs, or ask /v1/completions.",
            "constraints.catalog",
            "unsupported_parameter",
        )


def _check_can_call(model: ServedModel, template: ChatTemplate) -> None:
    """What the model writes as a call would be taken for text: the client would wait for a call that never comes."""
    if not template.takes_tools:
        raise bad_request(
            "The model's chat template shows no tools to the model; remove tools, or bind the answer with "
            "tool_choice required or one function.",
            "tools",
            "unsupported_parameter",
        )
    if model.output.tool_parser is None:
        raise bad_request(
            "The gateway does not know how this model writes calls (setting models[].tool_parser); remove tools, or "
            "bind the answer with tool_choice required or one function.",
            "tools",
            "unsupported_parameter",
        )


def _parser(request: ChatRequest, model: ServedModel, prompt: str, use: ToolUse) -> OutputParser | None:
    earlier = sum(len(message.tool_calls or ()) for message in request.messages)
    parser = model.output.parser(
        prompt, use.schemas, required=use.required, named=use.named, earlier_calls=earlier
    )
    return FirstCall(parser) if parser is not None and use.tools and use.single else parser


class _Writer:
    def __init__(
        self, request: ChatRequest, model: ServedModel, prompt: str, use: ToolUse, answer_id: str, created: int
    ) -> None:
        options = request.stream_options or _NO_OPTIONS
        self._identity = answer_id, created, request.model
        self._events = sse.ChatStream(
            *self._identity,
            usage_last=bool(options.include_usage),
            usage_always=bool(options.continuous_usage_stats),
        )
        self._begun: set[int] = set()
        self._echo = _last_answer(request.messages) if request.echo else ""
        self._prompt = {"prompt_text": prompt} if request.return_prompt_text else {}
        self._shows_reasoning = request.include_reasoning is not False
        self._shows_ids = bool(request.return_token_ids)
        self._withheld: dict[int, Withheld] = {}
        self._is_named = use.named is not None
        self._logprobs = (
            ChatLogprobs(
                token_bytes(model),
                request.top_logprobs or 0,
                every=request.logprob_token_ids is not None,
                as_token_ids=bool(request.return_tokens_as_token_ids),
            )
            if request.logprobs
            else None
        )

    def delta(self, answer: Answer, delta: Delta) -> bytes:
        counts = self._counts(answer)
        begin = b"" if answer.index in self._begun else self._begin(answer, counts)
        logprobs, members = None, sse.NONE
        if delta.outputs:
            logprobs, members = self._of_tokens(answer, delta.outputs)
        if answer.parser is not None:
            return begin + self._parsed(answer, counts, logprobs, members)
        if not delta.text and not logprobs and not members.get("token_ids"):
            return begin
        return begin + self._events.content(answer.index, delta.text, counts, logprobs, members)

    def around_text(self, answer: Answer) -> tuple[bytes, bytes] | None:
        return None if self._events.usage_always else self._events.around_content(answer.index)

    def telling(self) -> sse.Telling | None:
        """Of an answer of which nothing but its text is told."""
        return self._events.telling()

    def finish(self, answer: Answer, reason: str) -> bytes:
        counts = self._counts(answer)
        rest = self._parsed(answer, counts, *self._of_tokens(answer, {})) if answer.parser is not None else b""
        return rest + self._events.finish(answer.index, self._reason(answer, reason), counts, stop_reason(answer))

    def end(self, counts: Mapping[str, Any]) -> bytes:
        return self._events.end(counts)

    def whole(self, answers: Sequence[Answer], reasons: Sequence[str], counts: Mapping[str, int]) -> bytes:
        choices = [
            sse.chat_choice(
                answer.index,
                self._message(answer),
                self._reason(answer, reason),
                self._content(self._shown(answer, answer.logprobs)),
                stop_reason(answer)
                | ({"token_ids": self._shown(answer, answer.token_ids)} if self._shows_ids else {}),
            )
            for answer, reason in zip(answers, reasons, strict=True)
        ]
        prompt = self._of_prompt(answers[0])
        if answers[0].prompt_logprobs is not None:
            prompt["prompt_logprobs"] = sse.one_by_one(answers[0].prompt_logprobs)
        return sse.whole("chat.completion", *self._identity, choices, counts, prompt)

    def _begin(self, answer: Answer, counts: Mapping[str, int] | None) -> bytes:
        self._begun.add(answer.index)
        # What is said of the prompt is said once.
        begin = self._events.role(answer.index, counts, self._of_prompt(answer) if answer.index == 0 else {})
        return begin + self._events.content(answer.index, self._echo, counts) if self._echo else begin

    def _parsed(
        self,
        answer: Answer,
        counts: Mapping[str, Any] | None,
        logprobs: list[dict[str, Any]] | None,
        members: Mapping[str, Any],
    ) -> bytes:
        """The events of what the parser made of a response; its log probabilities and tokens go with the first."""
        out: list[bytes] = []
        for delta in self._deltas(answer.events):
            out.append(self._events.delta(answer.index, delta, counts, logprobs, members))
            logprobs, members = None, sse.NONE
        if logprobs or members.get("token_ids"):
            # The parser holds the text back.
            out.append(self._events.delta(answer.index, {}, counts, logprobs, members))
        return b"".join(out)

    def _of_tokens(
        self, answer: Answer, outputs: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]] | None, Mapping[str, Any]]:
        """The log probabilities and ids of a response's tokens, as far as they are asked for and may be shown."""
        positions: Sequence[Position] = outputs.get("logprobs") or ()
        ids: Sequence[int] = outputs.get("token_ids") or () if self._shows_ids else ()
        if answer.thinking is not None and not self._shows_reasoning:
            if answer.index not in self._withheld:
                self._withheld[answer.index] = Withheld(answer.thinking)
            positions, ids = self._withheld[answer.index].pass_on(positions, ids)
        return self._content(positions) or None, {"token_ids": ids} if ids else sse.NONE

    def _shown(self, answer: Answer, items: Sequence[_T]) -> Sequence[_T]:
        """Of what each token has, that which is not of a thinking that is hidden."""
        hides = answer.thinking is not None and not self._shows_reasoning
        return without_thinking(items, answer.thinking) if hides and answer.thinking else items

    def _deltas(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        for event in events:
            match event:
                case Content(text):
                    yield {"content": text}
                case Reasoning(text):
                    if self._shows_reasoning:
                        yield {"reasoning_content": text}
                case CallStart(index, call_id, name):
                    yield sse.call_start(index, call_id, name)
                case CallArguments(index, text):
                    yield sse.call_arguments(index, text)

    def _message(self, answer: Answer) -> dict[str, Any]:
        if answer.parser is None:
            return sse.chat_message(self._echo + answer.text)
        message = answer.message
        content = self._echo + message.content
        calls = [call._asdict() for call in message.calls]
        # A message that says nothing but calls or thinking has no content.
        silent = not content and (calls or message.reasoning)
        return sse.chat_message(
            None if silent else content, message.reasoning if self._shows_reasoning else "", calls
        )

    def _reason(self, answer: Answer, reason: str) -> str:
        return finish_reason(reason, len(answer.message.calls), self._is_named)

    def _content(self, positions: Sequence[Position]) -> list[dict[str, Any]] | None:
        return None if self._logprobs is None else self._logprobs.content(positions)

    def _of_prompt(self, answer: Answer) -> dict[str, Any]:
        if answer.prompt_token_ids is None:
            return dict(self._prompt)
        return {"prompt_token_ids": answer.prompt_token_ids, **self._prompt}

    def _counts(self, answer: Answer) -> dict[str, int] | None:
        if not self._events.usage_always:
            return None
        return usage_of(answer.prompt_tokens, answer.completion_tokens)


def _last_answer(messages: Sequence[Message]) -> str:
    """The text of the last message if it is the assistant's: what `echo` repeats."""
    last = messages[-1]
    if last.role != "assistant" or last.content is None:
        return ""
    return last.content if isinstance(last.content, str) else "\n".join(part.text or "" for part in last.content)
