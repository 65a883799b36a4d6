"""Probes of the fields that make the prompt."""

from typing import Any

from gateway.check.probes.ask import PROMPT, Ask, Probe, user
from gateway.check.verdicts import Verdict, accepted, failed, seen
from gateway.triton.contract import Backend

_SAID = "The sea"
_GOES_ON: dict[str, Any] = {
    "messages": [user(PROMPT), {"role": "assistant", "content": _SAID}],
    "continue_final_message": True,
}


async def messages(ask: Ask) -> Verdict:
    longer = await ask(messages=[user(PROMPT), {"role": "assistant", "content": _SAID}, user(PROMPT)])
    if longer.prompt_tokens <= ask.plain.prompt_tokens:
        return failed("more messages are no more tokens of prompt")
    return seen("more messages are more tokens of prompt")


async def prompt(ask: Ask) -> Verdict:
    two = await ask(prompt=[PROMPT, f"{PROMPT} {PROMPT}"])
    if len(two.choices) != 2 or two.prompt_tokens <= 2 * ask.plain.prompt_tokens:
        return failed(f"two texts have {len(two.choices)} answers and {two.prompt_tokens} tokens of prompt")
    if ask.backend is Backend.STOCK:
        return seen("a text, and two; token ids are refused")
    ids = list(ask.tokens.answer) if ask.tokens else [0, 1, 2]
    of_ids = await ask(prompt=ids)
    if of_ids.prompt_tokens != len(ids):
        return failed(f"{len(ids)} token ids are {of_ids.prompt_tokens} tokens of prompt")
    return seen("a text, two texts, and token ids")


def rendered(**given: Any) -> Probe:
    """For what the chat template may read."""

    async def probe(ask: Ask) -> Verdict:
        without, with_it = await ask(return_prompt_text=True), await ask(return_prompt_text=True, **given)
        if with_it.body["prompt_text"] != without.body["prompt_text"]:
            return seen("the prompt is another than without it")
        return accepted(with_it.warning or "the chat template makes nothing of it")

    return probe


async def continue_final_message(ask: Ask) -> Verdict:
    answer = await ask(**_GOES_ON, return_prompt_text=True)
    if not answer.body["prompt_text"].endswith(_SAID):
        return failed("the prompt does not end with the last message")
    return seen("the prompt ends with the last message")


async def echo_of_chat(ask: Ask) -> Verdict:
    answer = await ask(**_GOES_ON, echo=True)
    # Thinking is not part of it.
    if not str(answer.choice["message"]["content"]).startswith(_SAID):
        return failed("the answer does not begin with the last message")
    return seen("the answer begins with the last message")


async def echo_of_completion(ask: Ask) -> Verdict:
    if not (await ask(echo=True)).text.startswith(PROMPT):
        return failed("the answer does not begin with the prompt")
    return seen("the answer begins with the prompt")


async def return_prompt_text(ask: Ask) -> Verdict:
    if PROMPT not in (await ask(return_prompt_text=True)).body["prompt_text"]:
        return failed("prompt_text does not hold the message")
    return seen("prompt_text holds the message")


async def add_special_tokens(ask: Ask) -> Verdict:
    with_them, without = [await ask(add_special_tokens=adds) for adds in (True, False)]
    if with_them.prompt_tokens > without.prompt_tokens:
        return seen("true: more tokens of prompt than with false")
    tokenizer = ask.model.tokenizer
    if tokenizer and len(tokenizer.encode(PROMPT, add_special_tokens=True)) > len(
        tokenizer.encode(PROMPT, add_special_tokens=False)
    ):
        return failed("true: no more tokens of prompt than with false")
    return accepted("the tokenizer adds none")


async def truncate_prompt_tokens(ask: Ask) -> Verdict:
    count = (await ask(truncate_prompt_tokens=3)).prompt_tokens
    return seen("3 tokens of prompt are left") if count == 3 else failed(f"{count} tokens of prompt instead of 3")


async def truncation_side(ask: Ask) -> Verdict:
    left, right = [
        await ask(truncate_prompt_tokens=3, truncation_side=side, return_token_ids=True) for side in ("left", "right")
    ]
    if left.prompt_token_ids == right.prompt_token_ids:
        return failed("left and right leave the same tokens")
    return seen("left and right leave different tokens")
