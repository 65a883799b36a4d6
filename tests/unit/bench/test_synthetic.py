"""The synthetic engine: what a prompt asks of it, and that it answers what its client expects."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.synthetic.engine import Engine, Generation, Output
from bench.synthetic.script import MULTIBYTE_WORDS, TOKENS, WORDS, Script, read_script
from vllm_backend.contract import InvalidArgument, RequestError, StartError
from vllm_backend.request import GenerateRequest, parse_request

FAST = {"synthetic": {"step_milliseconds": 0}}


def request(prompt: str, sampling: str = "{}", **flags: bool) -> GenerateRequest:
    inputs: dict[str, Any] = {"text_input": np.array([prompt.encode()], dtype=np.object_)}
    inputs["sampling_parameters"] = np.array([sampling.encode()], dtype=np.object_)
    inputs |= {name: np.array([value]) for name, value in ({"stream": True} | flags).items()}
    parsed = parse_request(inputs)
    assert isinstance(parsed, GenerateRequest)
    return parsed


async def outputs(generation: Generation) -> list[Output]:
    found = [await generation.next_output()]
    while found[-1].finish_reason is None:
        found.append(await generation.next_output())
    return found


def test_every_word_is_another() -> None:
    for words in (WORDS, MULTIBYTE_WORDS):
        assert len(set(words)) == TOKENS
        assert {word[0] for word in words} == {" "}


@pytest.mark.parametrize("script", [Script(), Script(first=7, silent=3, multibyte=True, die_after=2)])
def test_a_prompt_carries_a_script(script: Script) -> None:
    assert read_script(f"<|user|>{script.prompt('Hello ')}<|end|>") == script


@pytest.mark.parametrize("prompt", ['synthetic{"colour": 1}', 'synthetic{"first": '])
async def test_what_is_no_script_is_refused(prompt: str) -> None:
    engine = await Engine.start(FAST)
    with pytest.raises(InvalidArgument):
        await engine.admit(request(prompt))
    await engine.shutdown()


@pytest.mark.parametrize(
    "script", [Script(first=4090), Script(silent=4), Script(multibyte=True), Script(pace=3, wait=5), Script(first=9)]
)
async def test_an_answer_is_the_scripts(script: Script) -> None:
    engine = await Engine.start(FAST)
    found = await outputs(await engine.admit(request(script.prompt(), '{"max_tokens": 50}')))
    assert "".join(output.text for output in found) == script.text(50)
    assert sum(len(output.token_ids) for output in found) == 50
    assert found[-1].finish_reason == "length"
    assert engine.unfinished == 0
    await engine.shutdown()


async def test_who_follows_gets_all_of_it() -> None:
    engine = await Engine.start(FAST)
    generation = await engine.admit(request(Script(first=3).prompt(), '{"max_tokens": 20}'))
    first = await generation.next_output()
    found: list[Output | RequestError] = []
    ended = asyncio.Event()

    def take(output: Output | RequestError) -> None:
        found.append(output)
        if isinstance(output, Output) and output.finish_reason is not None:
            ended.set()

    generation.follow(take)
    await ended.wait()
    rest = [output for output in found if isinstance(output, Output)]
    assert first.text + "".join(output.text for output in rest) == Script(first=3).text(20)
    await engine.shutdown()


async def test_an_answer_that_is_not_streamed_comes_at_once_and_with_logprobs() -> None:
    engine = await Engine.start(FAST)
    asked = request(Script().prompt(), '{"max_tokens": 5, "logprobs": 1}', stream=False, return_logprobs=True)
    (output,) = await outputs(await engine.admit(asked))
    assert output.text == Script().text(5)
    assert output.logprobs is not None
    assert [next(iter(position or ())) for position in output.logprobs] == [0, 1, 2, 3, 4]
    await engine.shutdown()


@pytest.mark.parametrize("script", [Script(fail_after=3), Script(die_after=3)])
async def test_failures(script: Script) -> None:
    engine = await Engine.start(FAST)
    other = await engine.admit(request(Script(wait=1_000_000).prompt()))
    with pytest.raises(RequestError):
        await outputs(await engine.admit(request(script.prompt())))
    assert engine.unfinished == (1 if script.die_after is None else 0)
    if script.die_after is not None:
        with pytest.raises(RequestError):
            await other.next_output()
        with pytest.raises(RequestError):
            await engine.admit(request(replace(script, die_after=None).prompt()))
        await asyncio.wait_for(engine.stopped(), 30)
    await engine.shutdown()


async def test_what_is_no_setting_is_refused() -> None:
    with pytest.raises(StartError, match="colour"):
        await Engine.start({"synthetic": {"colour": "red"}})
