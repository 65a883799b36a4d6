"""The field table: complete, and what it says is what happens."""

from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import BaseModel

from gateway.openai.errors import ApiError
from gateway.openai.fields import CHAT, COMPLETION, DETOKENIZE, TOKENIZE, Fate, Field, judge_extras
from gateway.openai.schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

GENERATE = {"chat": (CHAT, ChatRequest), "completion": (COMPLETION, CompletionRequest)}
TABLES = {**GENERATE, "tokenize": (TOKENIZE, TokenizeRequest), "detokenize": (DETOKENIZE, DetokenizeRequest)}
tables = pytest.mark.parametrize(("table", "kind"), TABLES.values(), ids=TABLES)
Table = Mapping[str, Field]

# vLLM's request fields before 0.12, in both request types. Those of the supported release are asked of it
# itself, in tests/real.
OLD_VLLM_FIELDS = {
    "best_of",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "logits_processors",
}


def test_every_field_of_openais_requests_has_an_entry() -> None:
    chat = get_type_hints(chat_params.CompletionCreateParamsStreaming)
    completion = get_type_hints(completion_params.CompletionCreateParamsStreaming)
    assert "messages" in chat
    assert "prompt" in completion
    assert chat.keys() - CHAT.keys() == set()
    assert completion.keys() - COMPLETION.keys() == set()


@pytest.mark.parametrize(("table", "kind"), GENERATE.values(), ids=GENERATE)
def test_every_field_of_older_vllms_has_an_entry(table: Table, kind: type[BaseModel]) -> None:
    assert OLD_VLLM_FIELDS - table.keys() == set()


@tables
def test_the_request_type_holds_what_is_forwarded_or_done_and_nothing_else(table: Table, kind: type[BaseModel]) -> None:
    assert kind.model_fields.keys() == {f.name for f in table.values() if f.fate in (Fate.FORWARDED, Fate.DONE)}


def test_only_what_cannot_change_the_answer_is_ignored() -> None:
    def ignored(table: Table) -> set[str]:
        return {f.name for f in table.values() if f.fate is Fate.IGNORED}

    assert ignored(CHAT) == {"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"}
    assert ignored(COMPLETION) == {"user"}
    assert ignored(TOKENIZE) == ignored(DETOKENIZE) == set()


REFUSED = [(table, f.name) for table, _ in TABLES.values() for f in table.values() if f.fate is Fate.REFUSED]


@pytest.mark.parametrize(("table", "name"), REFUSED, ids=[name for _, name in REFUSED])
def test_refused_fields_are_refused_by_name(table: Table, name: str) -> None:
    with pytest.raises(ApiError) as caught:
        judge_extras({name: {"some": "value"}}, table, strict=False)
    assert (caught.value.status, caught.value.param) == (400, name)
    assert ("not supported yet" in caught.value.message) is table[name].later
    for harmless in (None, *table[name].harmless):
        assert judge_extras({name: harmless}, table, strict=True) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("best_of", True),
        ("best_of", 1.0),
        ("use_beam_search", 0),
        ("routed_experts_prompt_start", False),
        ("modalities", ["text", "audio"]),
    ],
)
def test_a_harmless_value_is_that_json_value_and_no_other(name: str, value: Any) -> None:
    with pytest.raises(ApiError):
        judge_extras({name: value}, CHAT, strict=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("user", "u"),
        ("metadata", {"a": "b"}),
        ("store", False),
        ("safety_identifier", "x"),
        ("prompt_cache_key", "x"),
        ("service_tier", "auto"),
        ("service_tier", "default"),
    ],
)
def test_ignored_fields_are_named_in_a_warning(name: str, value: Any) -> None:
    (warning,) = judge_extras({name: value}, CHAT, strict=True)
    assert name in warning


@pytest.mark.parametrize(("name", "value"), [("store", True), ("service_tier", "priority")])
def test_values_that_ask_for_more_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        judge_extras({name: value}, CHAT, strict=False)
    assert caught.value.param == name


def test_a_flood_of_unknown_fields_is_refused_at_once() -> None:
    with pytest.raises(ApiError, match="1000 fields"):
        judge_extras(dict.fromkeys(map(str, range(1000)), 1), CHAT, strict=False)


def test_unknown_fields_are_named_or_with_strict_fields_refused() -> None:
    (warning,) = judge_extras({"temprature": 1}, CHAT, strict=False)
    assert "temprature" in warning
    with pytest.raises(ApiError, match="temprature"):
        judge_extras({"temprature": 1}, CHAT, strict=True)
