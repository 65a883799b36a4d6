"""Agents' clients in a tool loop: they ask, run the function that the model calls, and hand back what it says.

Which model it is, and in which family's way it writes calls, is nothing that the client knows.
"""

import json
from collections.abc import Iterator
from typing import Any

import agents
import openai
import pytest
from agents.items import TResponseInputItem
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai.types.responses.response_usage import InputTokensDetails
from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

from tests.support.families import FAMILIES, written
from tests.support.tools import WHOLE, Talk

LOOPS = ["hermes", "mistral_named", "kimi_k2", "gpt_oss"]
"""Of each form of ids, and harmony."""
ANSWER = "Paris is sunny, and it is noon."


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@tool
def get_time() -> str:
    """The time."""
    return "12:00"


class Person(BaseModel):
    """A person."""

    name: str
    age: int | None = None


def script(family: str, talk: Talk, merge: int | None = None) -> str:
    """Have the model first call both functions, then answer. Returns the model's name."""
    form = FAMILIES[family]
    text = written(form, "Let me see.", [("get_weather", {"city": "Paris"}), ("get_time", {})])
    talk.engine.add_fault(next=1, text=text, merge=merge)
    talk.engine.add_fault(next=1, text=written(form, ANSWER, []), merge=merge)
    return form.parser


def second_prompt(talk: Talk) -> str:
    _, second = talk.engine.wait_for_requests(2)
    return str(second["inputs"]["text_input"])


def chat_model(talk: Talk, model: str, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{talk.gateway.url}/v1", api_key=SecretStr("none"), model=model, max_retries=0, **settings
    )


@pytest.fixture(scope="module", autouse=True)
def agents_sdk() -> Iterator[None]:
    """It sends traces to its maker unless told not to; and its versions for openai 2 count tokens without a member
    that the last versions of openai 2 require."""
    agents.set_tracing_disabled(True)
    count = InputTokensDetails.model_fields["cache_write_tokens"]
    count.default = 0
    InputTokensDetails.model_rebuild(force=True)
    yield
    count.default = PydanticUndefined
    InputTokensDetails.model_rebuild(force=True)
    agents.set_tracing_disabled(False)


# LangChain


@pytest.mark.parametrize("family", LOOPS)
@pytest.mark.parametrize("merge", [None, 1, WHOLE], ids=["whole", "stream", "stream-merged"])
def test_langchain(family: str, merge: int | None, talk: Talk) -> None:
    functions = {"get_weather": get_weather, "get_time": get_time}
    client = chat_model(talk, script(family, talk, merge)).bind_tools(list(functions.values()))

    def ask(messages: list[BaseMessage]) -> AIMessage:
        if merge is None:
            answer = client.invoke(messages)
            assert isinstance(answer, AIMessage)
            return answer
        chunks = [chunk for chunk in client.stream(messages) if isinstance(chunk, AIMessageChunk)]
        total = chunks[0]
        for chunk in chunks[1:]:
            total = total + chunk
        return total

    messages: list[BaseMessage] = [HumanMessage("Weather and time in Paris?")]
    first = ask(messages)
    assert first.text.strip() == "Let me see."
    assert first.invalid_tool_calls == []
    assert [(call["name"], call["args"]) for call in first.tool_calls] == [
        ("get_weather", {"city": "Paris"}),
        ("get_time", {}),
    ]
    assert first.response_metadata["finish_reason"] == "tool_calls"
    messages.append(first)
    for call in first.tool_calls:
        result = functions[call["name"]].invoke(call)
        assert isinstance(result, ToolMessage)
        messages.append(result)
    last = ask(messages)
    assert (last.text, last.tool_calls) == (ANSWER, [])
    prompt = second_prompt(talk)
    for call, result in zip(first.tool_calls, ("sunny in Paris", "12:00"), strict=True):
        assert f"<|call|>{call['id']} {call['name']} {json.dumps(call['args'])}" in prompt
        assert f"<|tool|>{result}<|of|>{call['id']}" in prompt


@pytest.mark.parametrize("choice", ["any", "get_weather"])
def test_langchain_binds_the_answer(choice: str, talk: Talk) -> None:
    client = chat_model(talk, "hermes", max_completion_tokens=400).bind_tools([get_weather], tool_choice=choice)
    (call,) = client.invoke("Weather?").tool_calls[:1]
    assert (call["name"], list(call["args"])) == ("get_weather", ["city"])
    (request,) = talk.arrived()
    assert "structured_outputs" in request["sampling_parameters"]


@pytest.mark.parametrize("strict", [None, True])
def test_langchain_structured_output_by_a_call(strict: bool | None, talk: Talk) -> None:
    client = chat_model(talk, "hermes", max_completion_tokens=400)
    person = client.with_structured_output(Person, method="function_calling", strict=strict).invoke("Who?")
    assert isinstance(person, Person)
    (request,) = talk.arrived()
    assert request["sampling_parameters"]["structured_outputs"]["json"]["properties"].keys() == {"name", "age"}


# The Agents SDK


def agent(talk: Talk, model: str, called: list[str], **settings: Any) -> agents.Agent[Any]:
    @agents.function_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        called.append(city)
        return f"sunny in {city}"

    @agents.function_tool
    def get_time() -> str:
        """The time."""
        called.append("time")
        return "12:00"

    client = openai.AsyncOpenAI(base_url=f"{talk.gateway.url}/v1", api_key="none", max_retries=0)
    return agents.Agent(
        name="guide",
        instructions="Answer briefly.",
        model=agents.OpenAIChatCompletionsModel(model=model, openai_client=client),
        tools=[get_weather, get_time],
        **settings,
    )


def check_loop(talk: Talk, called: list[str], answer: Any, history: list[TResponseInputItem]) -> None:
    assert answer == ANSWER
    assert sorted(called) == ["Paris", "time"]
    prompt = second_prompt(talk)
    ids = [item["call_id"] for item in history if item.get("type") == "function_call"]  # type: ignore[typeddict-item]
    assert len(set(ids)) == 2
    for call_id, result in zip(ids, ("sunny in Paris", "12:00"), strict=True):
        assert f"<|tool|>{result}<|of|>{call_id}" in prompt


@pytest.mark.parametrize("family", LOOPS)
async def test_agents_sdk(family: str, talk: Talk) -> None:
    called: list[str] = []
    result = await agents.Runner.run(agent(talk, script(family, talk), called), "Weather and time in Paris?")
    check_loop(talk, called, result.final_output, result.to_input_list())


@pytest.mark.parametrize("family", LOOPS)
@pytest.mark.parametrize("merge", [1, WHOLE])
async def test_agents_sdk_streamed(family: str, merge: int, talk: Talk) -> None:
    called: list[str] = []
    running = agents.Runner.run_streamed(
        agent(talk, script(family, talk, merge), called), "Weather and time in Paris?"
    )
    kinds = [event.item.type async for event in running.stream_events() if event.type == "run_item_stream_event"]
    check_loop(talk, called, running.final_output, running.to_input_list())
    assert kinds.count("tool_call_item") == kinds.count("tool_call_output_item") == 2


async def test_agents_sdk_with_a_model_that_thinks(talk: Talk) -> None:
    called: list[str] = []
    calls = written(FAMILIES["hermes"], "", [("get_weather", {"city": "Paris"}), ("get_time", {})])
    talk.engine.add_fault(next=1, text=f"<think>Both.</think>\n{calls}")
    talk.engine.add_fault(next=1, text=f"<think>Fine.</think>\n{ANSWER}")
    running = agents.Runner.run_streamed(agent(talk, "qwen3", called), "Weather and time in Paris?")
    kinds = [event.item.type async for event in running.stream_events() if event.type == "run_item_stream_event"]
    assert "reasoning_item" in kinds
    check_loop(talk, called, running.final_output, running.to_input_list())


async def test_agents_sdk_requires_a_call(talk: Talk) -> None:
    """Which it does once: after the call it leaves the choice to the model."""
    called: list[str] = []
    settings = agents.ModelSettings(tool_choice="required", max_tokens=400, parallel_tool_calls=False)
    guide = agent(talk, "hermes", called, model_settings=settings)
    talk.engine.add_fault(match="<|of|>", text=ANSWER)
    result = await agents.Runner.run(guide, "Weather?")
    assert result.final_output == ANSWER
    assert len(called) == 1
    first, second = talk.engine.wait_for_requests(2)
    assert "structured_outputs" in first["sampling_parameters"]
    assert "structured_outputs" not in second["sampling_parameters"]
