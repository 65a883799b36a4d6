"""Probes of the fields that shape what comes back: its form, its limit, its constraint, what stands beside the text."""

from collections.abc import Callable
from typing import Any

import orjson

from gateway.check.answers import Answer
from gateway.check.probes.ask import NO_TOKENS, WORDS, Ask, Probe, endless, logprobs
from gateway.check.verdicts import Verdict, accepted, failed, seen

_ID = "probe"


async def model(ask: Ask) -> Verdict:
    named = ask.plain.body["model"]
    return seen("the answer names it") if named == ask.name else failed(f"the answer names {named!r}")


async def stream(ask: Ask) -> Verdict:
    chunks = len((await ask(stream=True, **endless(4))).texts)
    return seen("events, then [DONE]") if chunks else failed("no event holds text")


async def stream_options(ask: Ask) -> Verdict:
    last = await ask(stream=True, stream_options={"include_usage": True}, **endless(4))
    if last.tokens != 4:
        return failed(f"the last event counts {last.tokens} tokens instead of 4")
    return seen("the last event has the usage")


def limit(field: str) -> Probe:
    async def probe(ask: Ask) -> Verdict:
        answer = await ask(**{"max_tokens": None, field: 2}, ignore_eos=True)
        if answer.tokens != 2 or answer.finish_reason != "length":
            return failed(f"{answer.tokens} tokens instead of 2")
        return seen("2 tokens, finish_reason length")

    return probe


def constrained(allows: Callable[[str], bool], **constraint: Any) -> Probe:
    """For a constraint whose text `allows` knows."""

    async def probe(ask: Ask) -> Verdict:
        answer = await ask(**constraint, max_tokens=16)
        if allows(answer.text):
            return seen("the answer obeys")
        if answer.finish_reason == "length":
            return failed(f"the answer is cut off and no beginning of what is allowed: {answer.text!r}")
        return failed(f"the answer does not obey: {answer.text!r}")

    return probe


def is_word(text: str) -> bool:
    return text in WORDS


def is_json_word(text: str) -> bool:
    try:
        return is_word(orjson.loads(text))
    except ValueError:
        return False


async def choices(ask: Ask) -> Verdict:
    indexes = [choice["index"] for choice in (await ask(n=3)).choices]
    return seen("3 choices") if indexes == [0, 1, 2] else failed(f"choices {indexes} instead of 3")


async def logprobs_of_chat(ask: Ask) -> Verdict:
    answer = await ask(logprobs=True, **endless(4))
    if len(answer.positions) != answer.tokens:
        return failed(f"{len(answer.positions)} entries for {answer.tokens} tokens")
    return seen("an entry for each token")


async def top_logprobs(ask: Ask) -> Verdict:
    return _alternatives(await ask(logprobs=True, top_logprobs=2, **endless(4)), {2})


async def logprobs_of_completion(ask: Ask) -> Verdict:
    # The token itself is among them, and perhaps one of the two. By their ids, since two may have the same text.
    return _alternatives(await ask(**logprobs(ask, 2), **endless(4)), {2, 3})


def _alternatives(answer: Answer, counts: set[int]) -> Verdict:
    if len(answer.positions) != answer.tokens:
        return failed(f"{len(answer.positions)} entries for {answer.tokens} tokens")
    if not {len(position.top) for position in answer.positions} <= counts:
        return failed("not two alternatives for each token")
    return seen("two alternatives for each token")


async def logprob_token_ids(ask: Ask) -> Verdict:
    if ask.tokens is None:
        await ask(**logprobs(ask, 0), logprob_token_ids=[0])
        return accepted(NO_TOKENS)
    wanted = {ask.tokens.second, ask.tokens.answer[-1]}
    answer = await ask(**logprobs(ask, 0), **endless(4), logprob_token_ids=sorted(wanted))
    given = [position.top_ids | {position.token_id} for position in answer.positions]
    if given != [wanted | {position.token_id} for position in answer.positions] or not given:
        return failed("other alternatives than the tokens that it names")
    return seen("the alternatives are the tokens that it names")


async def prompt_logprobs(ask: Ask) -> Verdict:
    answer = await ask(prompt_logprobs=1)
    first, *others = answer.prompt_logprobs
    if first is not None or not all(others) or 1 + len(others) != answer.prompt_tokens:
        return failed(f"{1 + len(others)} entries for {answer.prompt_tokens} tokens of prompt")
    return seen("an entry for each token of the prompt")


async def return_token_ids(ask: Ask) -> Verdict:
    answer = await ask(return_token_ids=True)
    ids = answer.choice["token_ids"]
    if len(ids) != answer.tokens or len(answer.prompt_token_ids) != answer.prompt_tokens:
        return failed("not as many ids as tokens")
    return seen("the ids of prompt and answer")


async def return_tokens_as_token_ids(ask: Ask) -> Verdict:
    # Raises for a token that is named otherwise.
    ids = (await ask(**logprobs(ask, 1))).ids
    return seen("log probabilities name tokens by their ids") if ids else failed("no log probabilities")


async def request_id(ask: Ask) -> Verdict:
    answer_id = str((await ask(request_id=_ID)).body["id"])
    return seen("the answer has it") if answer_id.endswith(f"-{_ID}") else failed(f"the answer's id is {answer_id!r}")


_SCHEMA = {"enum": list(WORDS)}
CONSTRAINTS: dict[str, Probe] = {
    "response_format": constrained(
        is_json_word,
        response_format={"type": "json_schema", "json_schema": {"name": "word", "schema": _SCHEMA}},
    ),
    "structured_outputs": constrained(is_word, structured_outputs={"choice": list(WORDS)}),
    "guided_json": constrained(is_json_word, guided_json=_SCHEMA),
    "guided_regex": constrained(is_word, guided_regex="|".join(WORDS)),
    "guided_choice": constrained(is_word, guided_choice=list(WORDS)),
    "guided_grammar": constrained(is_word, guided_grammar='root ::= "kiwi" | "plum"'),
}
