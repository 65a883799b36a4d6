"""The engine's logits processors, made ready by the backend: which it calls, and what it says of wrong ones."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vllm_backend.contract import StartError
from vllm_backend.processors import configure


class Plain:
    """As vLLM's interface has it, without anything of ours."""


class Outer:
    class Settled:
        arguments = frozenset({"constraints", "other"})
        seen: Any = None

        @classmethod
        def configure(cls, vllm_config: Any) -> None:
            cls.seen = vllm_config


class Unsettled:
    @classmethod
    def configure(cls, vllm_config: Any) -> None:
        raise ValueError("additional_config.constraints.threads: must be a whole number.")


@pytest.fixture(autouse=True)
def processors(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("some_processors")
    for kind in (Plain, Outer, Unsettled):
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def config(*names: str) -> Any:
    return SimpleNamespace(model_config=SimpleNamespace(logits_processors=list(names) or None))


def test_without_processors_nothing_is_read() -> None:
    assert configure(config()) == configure(config("some_processors:Plain")) == frozenset()


def test_a_processor_is_told_its_engine_and_says_what_it_reads() -> None:
    engine = config("some_processors:Plain", "some_processors:Outer.Settled")
    assert configure(engine) == {"constraints", "other"}
    assert Outer.Settled.seen is engine


def test_a_wrong_setting_is_one_sentence_about_model_json() -> None:
    with pytest.raises(StartError) as caught:
        configure(config("some_processors:Unsettled"))
    assert str(caught.value) == "model.json: additional_config.constraints.threads: must be a whole number."


@pytest.mark.parametrize("name", ["some_processors:Absent", "absent_processors:Plain", "some_processors", ":Plain"])
def test_one_that_cannot_be_loaded_is_named(name: str) -> None:
    with pytest.raises(StartError, match=rf"^model\.json: logits_processors: {name} cannot be loaded: .*\.$"):
        configure(config(name))
