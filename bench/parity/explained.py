"""The differences in which one server's answer is known to be the wrong one, each with its reason. Pure.

The wrong answers are those of vLLM's own server; server A is meant to be right, as the gateway is. An explanation
covers a place only where A's answer is what the reference asks for; any other difference at the same place stays
unexplained. docs/parity.md shows the table.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from bench.parity.client import JSON, Answer
from bench.parity.compare import ABSENT, TOLERANCE, Difference, differences
from bench.parity.shape import Body, Shape

_VLLM = "https://github.com/vllm-project/vllm"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_OPENAI = "https://platform.openai.com/docs/api-reference"
_ERRORS = "[OpenAI's error codes](https://platform.openai.com/docs/guides/error-codes)"
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


@dataclass(frozen=True)
class Case:
    """A request and what server A and server B answered."""

    shape: Shape
    a: Answer
    b: Answer

    @property
    def body(self) -> Body:
        return self.shape.body

    @property
    def mirrored(self) -> "Case":
        return Case(self.shape, self.b, self.a)


@dataclass(frozen=True)
class Explanation:
    """`fields` are the places it is about, with their indices left out, and all that is below them."""

    fields: tuple[str, ...]
    why: str
    reference: str
    is_right: Callable[[Case, Difference], bool]

    def covers(self, case: Case, difference: Difference) -> bool:
        place = re.sub(r"\[\d+\]", "[]", difference.place)
        inside = any(place == field or place.startswith((field + ".", field + "[")) for field in self.fields)
        try:
            return inside and self.is_right(case, difference)
        except (LookupError, TypeError, ValueError, AttributeError):
            # A's answer lacks what would show that it is right.
            return False


def explanation_of(case: Case, difference: Difference) -> Explanation | None:
    """Why A is right; None where it is not known to be. Mirrored, both arguments ask the same of B."""
    return next((one for one in EXPLANATIONS if one.covers(case, difference)), None)


def table() -> str:
    """EXPLANATIONS as a table in Markdown."""
    rows = ["| field | the gateway, and how vLLM's own server differs | reference |", "|---|---|---|"]
    for one in EXPLANATIONS:
        fields = ", ".join(f"`{field}`" for field in one.fields)
        rows.append(f"| {fields} | {one.why} | {one.reference} |")
    return "\n".join(rows)


# --- Refusals.


def _refuses(case: Case) -> bool:
    return case.a.status == 400 and case.b.status == 200


def _two_limits(case: Case, _: Difference) -> bool:
    return _refuses(case) and {"max_tokens", "max_completion_tokens"} <= case.body.keys()


def _priority(case: Case, _: Difference) -> bool:
    return _refuses(case) and bool(case.body.get("priority"))


def _given_tokens(case: Case, _: Difference) -> bool:
    return _refuses(case) and bool(case.body.get("logprob_token_ids"))


def _running_usage(case: Case, _: Difference) -> bool:
    options = case.body.get("stream_options", {})
    return _refuses(case) and bool(options.get("continuous_usage_stats")) and not options.get("include_usage")


def _best_of(case: Case, _: Difference) -> bool:
    return _refuses(case) and case.body.get("best_of", 1) > 1


def _greedy_choices(case: Case, _: Difference) -> bool:
    """As many as were asked for, and all choices of a prompt say the same."""
    body, choices = case.body, case.a.tree.get("choices", [])
    prompts = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    said = [{name: value for name, value in choice.items() if name != "index"} for choice in choices]
    if body.get("temperature") != 0 or body.get("n", 1) < 2 or len(said) != prompts * body["n"]:
        return False
    in_order = [choice["index"] for choice in choices] == list(range(len(choices)))
    firsts = [said[number // body["n"] * body["n"]] for number in range(len(said))]
    return in_order and not any(differences(firsts, said))


def _empty_prompt(case: Case, _: Difference) -> bool:
    return case.body.get("prompt") == "" and case.b.status == 400 and case.a.tree["usage"]["prompt_tokens"] > 0


def _unknown_role(case: Case, _: Difference) -> bool:
    return _refuses(case) and any(message["role"] not in _ROLES for message in case.body["messages"])


def _unseen_tools(case: Case, _: Difference) -> bool:
    return _refuses(case) and bool(case.body["tools"]) and case.a.tree["error"]["param"] == "tools"


# --- What an error says beside its sentence.


def _error_type(case: Case, difference: Difference) -> bool:
    """A word of OpenAI's kind; B's is the name of a class, or of the status."""
    a, b = difference.a, difference.b
    return bool(re.fullmatch(r"[a-z]+(_[a-z]+)*_error", a) and re.fullmatch(r"[A-Z][\w ]*", b))


def _error_code(case: Case, difference: Difference) -> bool:
    """A word, or none; B's is the status again."""
    return (difference.a is ABSENT or isinstance(difference.a, str)) and bool(difference.b == case.b.status)


def _error_param(case: Case, difference: Difference) -> bool:
    """The place in the request; B has none, a place around it, one of its own making, or the wrong one of two."""
    a, b = difference.a, difference.b
    if case.shape.raw is not None:
        return a is ABSENT and b.startswith("body")
    first = re.split(r"[.\[]", a)[0]
    if first not in case.body and not case.a.message.startswith(f"{first} is required"):
        return False
    if b is ABSENT or b.startswith("body.") or a.startswith(b + "."):
        return True
    return b not in case.body or (a, b) == ("top_logprobs", "logprobs")


def _error_shape(case: Case, difference: Difference) -> bool:
    return difference.b is ABSENT and bool(case.a.message) and isinstance(difference.a["type"], str)


# --- Members of an answer.


def _role(case: Case, difference: Difference) -> bool:
    return case.body.get("add_generation_prompt") is False and difference.a == "assistant"


def _unasked(asking: str) -> Callable[[Case, Difference], bool]:
    """The gateway leaves out what the field `asking` did not ask for."""
    return lambda case, difference: not case.body.get(asking) and difference.a is ABSENT


def _prompt_alone(case: Case, _: Difference) -> bool:
    usage = case.a.tree["usage"]
    return case.body.get("max_tokens") == 0 and usage["completion_tokens"] == 0


def _echo_with_ids(case: Case, difference: Difference) -> bool:
    asked = case.body.get("echo") and case.body.get("return_token_ids")
    return bool(asked) and bool(difference.a == case.body["prompt"] + difference.b)


def _old_name(case: Case, _: Difference) -> bool:
    allowed = case.body.get("guided_choice", [])
    return bool(allowed) and all(choice["message"]["content"] in allowed for choice in case.a.tree["choices"])


def _content_of_calls(case: Case, difference: Difference) -> bool:
    message = _at(case.a, difference.place.removesuffix(".content"))
    return difference.a is ABSENT and difference.b == "" and bool(message["tool_calls"])


def _arguments(case: Case, difference: Difference) -> bool:
    """The same value; B's text is not the one that it streams."""
    return bool(json.loads(difference.a) == json.loads(difference.b)) and not case.body.get("stream")


def _nothing_beside_calls(case: Case, difference: Difference) -> bool:
    """The same calls, in fewer tokens."""
    a, b = (_at(answer, "choices[0].message.tool_calls") for answer in (case.a, case.b))
    same = [_called(call) for call in a] == [_called(call) for call in b]
    return case.body["tool_choice"] == "required" and same and bool(difference.a < difference.b)


def _called(call: JSON) -> tuple[str, Any]:
    return call["function"]["name"], json.loads(call["function"]["arguments"])


def _no_reasoning(case: Case, difference: Difference) -> bool:
    return difference.b is ABSENT and bool(difference.a == {"reasoning_tokens": 0})


# --- Log probabilities.


def _bytes(case: Case, difference: Difference) -> bool:
    """They are no text alone, and those of all tokens together are the text; or vLLM's are those of a placeholder."""
    place = re.sub(r"\.bytes.*", "", difference.place)
    ours, theirs = _at(case.a, place), _at(case.b, place)
    if theirs["token"].startswith("token_id:") and bytes(theirs["bytes"]) == theirs["token"].encode():
        return True
    if _is_text(bytes(ours["bytes"])):
        return False
    if ".top_logprobs" in place:
        return True
    choice = _at(case.a, place.partition(".")[0])
    whole = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]).decode(errors="replace")
    # Of a character at the end the last tokens may be missing; the last token of all may not be shown.
    text: str = choice["message"]["content"]
    return whole.startswith(text.rstrip(_REPLACEMENT))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _best_ranked(case: Case, difference: Difference) -> bool:
    """The gateway's are the best ones; vLLM has the sampled one first and therefore lacks the last of them."""
    place = difference.place.partition(".top_logprobs")[0]
    ours, theirs = _at(case.a, place), _at(case.b, place)
    mine, its = ours["top_logprobs"], theirs["top_logprobs"]
    values = [entry["logprob"] for entry in mine]
    return (
        values == sorted(values, reverse=True)
        and len(mine) == len(its) == case.body["top_logprobs"]
        and its[0]["token"] == ours["token"]
        and ours["logprob"] < values[-1] + TOLERANCE
        and [entry["token"] for entry in its[1:]] == [entry["token"] for entry in mine[:-1]]
    )


def _sampled_stays(case: Case, difference: Difference) -> bool:
    """Two tokens read alike, such as two that are parts of characters: the sampled one's is shown."""
    found = re.match(r"(choices\[\d+\]\.logprobs)\.top_logprobs\[(\d+)\]\.(.*)", difference.place, re.DOTALL)
    if found is None:
        return False
    logprobs, index, token = _at(case.a, found[1]), int(found[2]), found[3]
    return bool(logprobs["tokens"][index] == token and difference.a == logprobs["token_logprobs"][index])


def _offset(case: Case, difference: Difference) -> bool:
    """The tokens stand in the text where their offsets say; or vLLM's are the sums of its placeholders' lengths."""
    place = difference.place.partition(".")[0]
    choice, theirs = _at(case.a, place), _at(case.b, place)["logprobs"]
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    if tokens[0].startswith("token_id:"):
        lengths = [len(token) for token in theirs["tokens"]]
        return bool(theirs["text_offset"] == [0, *accumulate(lengths[:-1])] and offsets == sorted(offsets))
    return _stand(choice["text"], tokens, offsets)


def _stand(text: str, tokens: Sequence[str], offsets: Sequence[int]) -> bool:
    """Whether the text between a token's offset and the next one is the token's. Tokens that are parts of a character
    are shown as nothing: what stands at their offsets is part of the next one's text, or of none."""
    begun: int | None = None
    for token, begin, end in zip(tokens, offsets, [*offsets[1:], len(text)], strict=True):
        if not token.strip(_REPLACEMENT):
            begun = begin if begun is None else begun
            continue
        shown = text[begin if begun is None else begun : end]
        is_cut = end >= len(text) and token.startswith(text[begin:])
        is_left_out = begun is None and begin == end
        if not (is_cut or is_left_out or (shown == token if begun is None else shown.endswith(token))):
            return False
        begun = None
    return list(offsets) == sorted(offsets)


def _at(answer: Answer, place: str) -> Any:
    value: Any = answer.tree
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", place):
        value = value[name] if name else value[int(index)]
    return value


EXPLANATIONS = (
    Explanation(
        ("status",),
        "`max_tokens` and `max_completion_tokens` that differ are refused, as OpenAI does; vLLM drops `max_tokens`.",
        "[OpenAI's answer](https://github.com/langchain-ai/langgraph/issues/5943)",
        _two_limits,
    ),
    Explanation(
        ("status",),
        "A `priority` is refused unless the engine schedules by it; vLLM takes it without effect, although its own "
        "description of the field says that it is an error.",
        f"[vllm#23043]({_VLLM}/pull/23043)",
        _priority,
    ),
    Explanation(
        ("status",),
        "`logprob_token_ids` is refused where vLLM's V1 model runner would give other requests of the batch wrong "
        "log probabilities.",
        f"[vllm#51789]({_VLLM}/pull/51789)",
        _given_tokens,
    ),
    Explanation(
        ("status",),
        "`continuous_usage_stats` without `include_usage` is refused; vLLM drops it silently.",
        f"[vllm#5742]({_VLLM}/pull/5742)",
        _running_usage,
    ),
    Explanation(
        ("status",),
        "`best_of` above 1 is refused; vLLM removed it and drops it silently.",
        f"[vllm#29090]({_VLLM}/pull/29090)",
        _best_of,
    ),
    Explanation(
        ("status",),
        "Several choices at temperature 0 are given, all the same; vLLM refuses them, OpenAI has no such rule.",
        f"[OpenAI on `n`]({_OPENAI}/chat/create)",
        _greedy_choices,
    ),
    Explanation(
        ("status",),
        "An empty prompt is answered where the tokenizer adds a BOS; vLLM refuses it before it is tokenized.",
        f"[OpenAI on `prompt`]({_OPENAI}/completions/create)",
        _empty_prompt,
    ),
    Explanation(
        ("status",),
        "A message of a role that the API does not have is refused; vLLM gives it to the chat template.",
        f"[OpenAI on `messages`]({_OPENAI}/chat/create)",
        _unknown_role,
    ),
    Explanation(
        ("status",),
        "Tools that the model would not see, since its chat template shows none, are refused; vLLM leaves them out of "
        "the prompt silently.",
        "[Tools](tools.md)",
        _unseen_tools,
    ),
    Explanation(
        ("error.type",),
        "A word for programs; vLLM gives the name of its class or of the status: `BadRequestError`, `Bad Request`.",
        _ERRORS,
        _error_type,
    ),
    Explanation(
        ("error.code",),
        "A word for programs, such as `model_not_found`; vLLM repeats the status.",
        _ERRORS,
        _error_code,
    ),
    Explanation(
        ("error.param",),
        "The place in the request, as exact as can be; vLLM leaves most out and gives others as `body.…`.",
        _ERRORS,
        _error_param,
    ),
    Explanation(
        ("error",),
        'A path that does not exist is an error like all others; vLLM\'s is `{"detail": …}`.',
        _ERRORS,
        _error_shape,
    ),
    Explanation(
        ("choices[].message.content",),
        "`null` beside calls, as OpenAI has it; vLLM has an empty text.",
        f"[OpenAI's object]({_OPENAI}/chat/object)",
        _content_of_calls,
    ),
    Explanation(
        ("choices[].message.tool_calls[].function.arguments",),
        "As the model wrote them, streamed or not; vLLM writes those of a whole answer anew, with blanks, but not "
        "those of a stream.",
        f"[OpenAI's object]({_OPENAI}/chat/object)",
        _arguments,
    ),
    Explanation(
        ("usage.completion_tokens", "usage.total_tokens"),
        "A call that `required` binds is a name and arguments; vLLM lets the model write more members beside them, "
        "which it drops, and counts their tokens.",
        f"[OpenAI on `tool_choice`]({_OPENAI}/chat/create)",
        _nothing_beside_calls,
    ),
    Explanation(
        ("usage.completion_tokens_details",),
        "Where an answer is parsed, the tokens of its thinking are counted, be it 0; vLLM leaves the member out.",
        f"[OpenAI's object]({_OPENAI}/chat/object)",
        _no_reasoning,
    ),
    Explanation(
        ("choices[].message.role",),
        "The author of an answer is the assistant; with `add_generation_prompt: false` vLLM repeats the role of the "
        "request's last message.",
        f"[OpenAI on `role`]({_OPENAI}/chat/object)",
        _role,
    ),
    Explanation(
        ("choices[]", "usage"),
        "`guided_choice` and the other old names of a constraint are obeyed; vLLM drops them silently.",
        f"[vllm#53975]({_VLLM}/issues/53975)",
        _old_name,
    ),
    Explanation(
        ("choices[].text",),
        "`echo` repeats the prompt also beside `return_token_ids`; vLLM leaves it out.",
        f"[vllm#57996]({_VLLM}/issues/57996)",
        _echo_with_ids,
    ),
    Explanation(
        ("prompt_logprobs", "choices[].prompt_logprobs"),
        "Absent unless asked for; with `echo` vLLM adds it unasked, although not in a stream.",
        f"[OpenAI's object]({_OPENAI}/completions/object)",
        _unasked("prompt_logprobs"),
    ),
    Explanation(
        ("choices[].prompt_token_ids",),
        "Absent unless `return_token_ids` asks for it; with `echo` in a stream vLLM sends it unasked.",
        f"[vllm#39556]({_VLLM}/pull/39556)",
        _unasked("return_token_ids"),
    ),
    Explanation(
        ("usage",),
        "`echo` with `max_tokens: 0` has no completion tokens; vLLM counts the one that its engine makes all the same.",
        f"[vllm#39556]({_VLLM}/pull/39556), [vllm#44938]({_VLLM}/pull/44938)",
        _prompt_alone,
    ),
    Explanation(
        ("choices[].logprobs.content[].bytes", "choices[].logprobs.content[].top_logprobs[].bytes"),
        "The token's own bytes, so that those of several tokens make up a character; vLLM encodes what it shows as "
        "the token's text, which is empty for the beginning of a character, the whole character for its end, and "
        "`token_id:N` with `return_tokens_as_token_ids`.",
        f"[OpenAI on `bytes`]({_OPENAI}/chat/object)",
        _bytes,
    ),
    Explanation(
        ("choices[].logprobs.content[].top_logprobs",),
        "The most likely tokens. Where a less likely one was sampled, vLLM puts it first and drops the last of them.",
        f"[OpenAI on `top_logprobs`]({_OPENAI}/chat/object)",
        _best_ranked,
    ),
    Explanation(
        ("choices[].logprobs.top_logprobs",),
        "Always has the sampled token's; vLLM overwrites it with that of another token that reads the same, such as "
        "two that begin a character.",
        f"[OpenAI on `logprobs`]({_OPENAI}/completions/create)",
        _sampled_stays,
    ),
    Explanation(
        ("choices[].logprobs.text_offset",),
        "Where the token stands in the answer's text; vLLM adds up the lengths of what it shows as the tokens' texts, "
        "which is not what they add to it: a BOS that the text has not, `token_id:N`, parts of characters.",
        f"[vllm#19368]({_VLLM}/issues/19368)",
        _offset,
    ),
)
