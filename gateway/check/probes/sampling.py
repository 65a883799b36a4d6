"""Probes of the fields that choose the tokens and end the answer."""

from typing import Any

from gateway.check.answers import Answer
from gateway.check.probes.ask import NO_TOKENS, Ask, Probe, endless, logprobs, one_of, only
from gateway.check.verdicts import Verdict, accepted, failed, seen
from gateway.triton.contract import Backend

_HOT = {"temperature": 2}
_FORCED = "kiwi plum fig"
_WITHOUT_EFFECT = {
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
}


def _undefaulted(ask: Ask) -> dict[str, Any]:
    """Takes the model's own defaults out of the way, with which other tokens than the likeliest may be chosen."""
    return {name: value for name, value in _WITHOUT_EFFECT.items() if name in ask.model.defaults}


async def _is_all_likeliest(ask: Ask, **changes: Any) -> bool:
    answer = await ask(**_undefaulted(ask) | changes, **logprobs(ask, 1), **endless(12))
    if not answer.positions:
        raise ValueError("there are no log probabilities")
    return all(position.is_likeliest for position in answer.positions)


async def temperature(ask: Ask) -> Verdict:
    if ask.tokens is None:
        await ask(**_HOT)
        return accepted(NO_TOKENS)
    if not await _is_all_likeliest(ask, temperature=0):
        return failed("at temperature 0 a token is not the likeliest")
    if await _is_all_likeliest(ask, **_HOT):
        return accepted("12 tokens are the likeliest ones at temperature 2 too")
    return seen("at temperature 0 the likeliest tokens, at 2 others too")


def narrowed(**limit: Any) -> Probe:
    """For a limit that leaves the likeliest token alone."""

    async def probe(ask: Ask) -> Verdict:
        if ask.tokens is None:
            await ask(**limit)
            return accepted(NO_TOKENS)
        if await _is_all_likeliest(ask, **_HOT, **limit):
            return seen("only the likeliest tokens at temperature 2")
        return failed("a token is not the likeliest")

    return probe


def reweighted(**penalty: Any) -> Probe:
    """For a penalty, which may or may not change an answer."""

    async def probe(ask: Ask) -> Verdict:
        # Of two tokens that are nearly as likely, the second comes when the first has come often enough.
        choose = only(ask.tokens.answer[0], ask.tokens.second) if ask.tokens else {}
        without = await ask(**_undefaulted(ask), **choose, **endless(12))
        with_it = await ask(**_undefaulted(ask) | penalty, **choose, **endless(12))
        if with_it.text == without.text:
            return accepted("the answer is the same without it")
        return seen("another answer than without it")

    return probe


async def seed(ask: Ask) -> Verdict:
    first, again, other = [(await ask(seed=number, **_HOT, **endless(8))).text for number in (7, 7, 8)]
    if first != again:
        return failed("the same seed gave another answer")
    if first == other:
        return accepted("another seed gave the same answer too")
    return seen("the same answer again, another with another seed")


async def stop(ask: Ask) -> Verdict:
    answer = await ask(**one_of(_FORCED), stop=["plum"])
    if answer.text != "kiwi " or answer.finish_reason != "stop":
        return failed(f"the answer did not end before it: {answer.text!r}")
    return _with_reason(ask, answer, "plum", "ended before it")


async def include_stop_str_in_output(ask: Ask) -> Verdict:
    answer = await ask(**one_of(_FORCED), stop=["plum"], include_stop_str_in_output=True)
    if answer.text != "kiwi plum":
        return failed(f"the answer does not end with the stop string: {answer.text!r}")
    return seen("the answer ends with the stop string")


async def stop_token_ids(ask: Ask) -> Verdict:
    if ask.tokens is None:
        await ask(stop_token_ids=[0])
        return accepted(NO_TOKENS)
    token = ask.tokens.second
    answer = await ask(**only(token), stop_token_ids=[token])
    if answer.tokens != 1 or answer.finish_reason != "stop":
        return failed(f"the answer did not end at it but after {answer.tokens} tokens")
    return _with_reason(ask, answer, token, "ended at it")


def _with_reason(ask: Ask, answer: Answer, reason: int | str, how: str) -> Verdict:
    if ask.backend is Backend.STOCK:
        return seen(how)
    if answer.choice.get("stop_reason") != reason:
        return failed(f"{how}, but stop_reason is {answer.choice.get('stop_reason')!r}")
    return seen(f"{how}, with its stop_reason")


def forced(field: str) -> Probe:
    """For the two fields that can make one token the only one."""

    async def probe(ask: Ask) -> Verdict:
        token = ask.tokens.second if ask.tokens else 0
        value = {str(token): 100} if field == "logit_bias" else [token]
        if ask.tokens is None:
            await ask(**{field: value})
            return accepted(NO_TOKENS)
        answer = await ask(**{field: value}, **logprobs(ask, 1), **endless(3))
        if set(answer.ids) != {token}:
            return failed("other tokens than the one that it forces")
        return seen("no other token than the one that it forces")

    return probe


async def min_tokens(ask: Ask) -> Verdict:
    can_bias = ask.end is not None and ask.backend is Backend.OURS
    towards_end = {"logit_bias": {str(ask.end): 100}} if can_bias else {}
    without = await ask(**towards_end)
    with_it = await ask(**towards_end, min_tokens=4)
    if with_it.tokens < 4:
        return failed(f"{with_it.tokens} tokens instead of at least 4")
    if without.tokens < 4:
        return seen(f"4 tokens, {without.tokens} without it")
    return accepted("4 tokens, and so without it")


async def ignore_eos(ask: Ask) -> Verdict:
    ends = {} if ask.end is None else only(ask.end)
    without = await ask(**ends)
    with_it = await ask(**ends, ignore_eos=True)
    if with_it.tokens < 4:
        return failed(f"the answer ended after {with_it.tokens} tokens")
    if without.tokens < 4:
        return seen(f"4 tokens, {without.tokens} without it")
    return accepted("4 tokens, and so without it")


async def bad_words(ask: Ask) -> Verdict:
    named = await ask(**logprobs(ask, 1) | {"return_tokens_as_token_ids": False}, **endless(8))
    words = [position.token.strip() for position in named.positions]
    at = next((i for i, word in enumerate(words) if len(word) > 1 and word.isascii() and word.isalpha()), None)
    if at is None or ask.tokens is None:
        await ask(bad_words=["kiwi"])
        return accepted("the plain answer has no word to forbid")
    answer = await ask(bad_words=[words[at]], **logprobs(ask, 1), **endless(8))
    if answer.ids[: at + 1] == list(ask.tokens.answer[: at + 1]):
        return failed(f"the answer still holds {words[at]!r}")
    return seen("a word of the plain answer is gone")


async def skip_special_tokens(ask: Ask) -> Verdict:
    if ask.end is None:
        await ask(skip_special_tokens=False)
        return accepted(NO_TOKENS)
    ends = only(ask.end) | endless(2)
    without, with_it = await ask(**ends), await ask(**ends, skip_special_tokens=False)
    if with_it.text != without.text:
        return seen(f"false: the end token is written out, {with_it.text!r}")
    tokenizer = ask.model.tokenizer
    if tokenizer is not None and ask.end in tokenizer.special_ids:
        return failed("false, but the end token is not written out")
    return accepted("the end token has no text")


async def spaces_between_special_tokens(ask: Ask) -> Verdict:
    ends = ({} if ask.end is None else only(ask.end)) | endless(2)
    with_spaces, without = [
        await ask(**ends, skip_special_tokens=False, spaces_between_special_tokens=spaces) for spaces in (True, False)
    ]
    if with_spaces.text != without.text:
        return seen("false: special tokens without spaces between them")
    return accepted("makes no difference with this tokenizer")


async def repetition_detection(ask: Ask) -> Verdict:
    rule = {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 3}
    if ask.tokens is None:
        await ask(repetition_detection=rule)
        return accepted(NO_TOKENS)
    answer = await ask(**only(ask.tokens.second), **endless(8), repetition_detection=rule)
    if answer.finish_reason != "repetition":
        return failed(f"a token over and over ended with {answer.finish_reason}")
    return seen("a token over and over ended with repetition")


async def constraints(ask: Ask) -> Verdict:
    once = {"no_repeat_ngram": {"size": 1}}
    if ask.tokens is None:
        await ask(constraints=once)
        return accepted(NO_TOKENS)
    token = ask.tokens.second
    answer = await ask(constraints=once, logit_bias={str(token): 100}, **logprobs(ask, 1), **endless(4))
    if answer.ids.count(token) != 1:
        return failed(f"a token that may come once came {answer.ids.count(token)} times")
    return seen("a token that may come once came once, with a bias towards it")


async def stream_interval(ask: Ask) -> Verdict:
    forced_text = one_of(_FORCED)
    without = len((await ask(**forced_text, stream=True)).texts)
    with_it = len((await ask(**forced_text, stream=True, stream_interval=100)).texts)
    if with_it < without:
        return seen("fewer chunks than without it")
    return failed(f"{with_it} chunks, and so without it") if without > 2 else accepted("few chunks without it too")


def unseen(**value: Any) -> Probe:
    """For what no single answer shows."""

    async def probe(ask: Ask) -> Verdict:
        await ask(**value)
        return accepted("no answer shows it")

    return probe
