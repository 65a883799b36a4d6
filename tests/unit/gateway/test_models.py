"""Served models: what the repository and the tokenizer's folder say."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, processors

from gateway.models import ServedModel, served_models
from gateway.settings import Settings, SettingsError


def write(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "hf"
    write(folder / "tokenizer_config.json", {"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}"})
    write(folder / "generation_config.json", {"temperature": 0.6})
    write(folder / "config.json", {"max_position_embeddings": 2048})
    return folder


@pytest.fixture
def repository(tmp_path: Path, tokenizer: Path) -> Path:
    folder = tmp_path / "repository"
    engine = {"model": str(tokenizer), "max_model_len": 512, "structured_outputs_config": {"backend": "guidance"}}
    write(folder / "m" / "config.pbtxt", 'backend: "vllm"\n')
    write(folder / "m" / "1" / "model.json", engine)
    write(folder / "m" / "2" / "model.json", engine | {"max_model_len": 1024})
    write(folder / "other" / "config.pbtxt", 'backend: "onnxruntime"\n')
    write(folder / "other" / "1" / "model.json", {})
    return folder


def served(**settings: Any) -> list[ServedModel]:
    return served_models(Settings(**settings))


def test_every_vllm_model_of_the_repository_is_served(repository: Path) -> None:
    (model,) = served(model_repository=repository)
    assert (model.names, model.triton_model) == (("m",), "m")
    assert (model.grammar_backend, model.max_model_len) == ("guidance", 1024)
    assert model.defaults == {"temperature": 0.6}
    assert model.template is not None


def test_settings_win_over_the_repository(repository: Path) -> None:
    own = {"triton_model": "m", "names": ["a", "b"], "structured_outputs_backend": "xgrammar", "max_model_len": 100}
    (model,) = served(model_repository=repository, models=[own])
    assert (model.names, model.grammar_backend, model.max_model_len) == (("a", "b"), "xgrammar", 100)


def test_a_remote_triton_needs_no_repository(tokenizer: Path) -> None:
    (model,) = served(models=[{"triton_model": "m", "tokenizer": tokenizer}])
    assert (model.grammar_backend, model.max_model_len, model.trained_len) == ("", None, 2048)


def test_without_a_tokenizer_chat_is_refused_with_the_setting_to_give() -> None:
    (model,) = served(models=[{"triton_model": "m"}])
    assert model.template is None
    assert "models[].tokenizer" in model.no_chat


def test_without_a_template_chat_is_refused_with_the_setting_to_give(tokenizer: Path) -> None:
    write(tokenizer / "tokenizer_config.json", {})
    (model,) = served(models=[{"triton_model": "m", "tokenizer": tokenizer}])
    assert model.template is None
    assert "models[].chat_template" in model.no_chat


@pytest.mark.parametrize("place", ["jinja", "json", "named", "setting"])
def test_all_places_of_a_template(place: str, tokenizer: Path, tmp_path: Path) -> None:
    extra: dict[str, Any] = {}
    write(tokenizer / "tokenizer_config.json", {})
    if place == "jinja":
        write(tokenizer / "chat_template.jinja", "x")
    elif place == "json":
        write(tokenizer / "chat_template.json", {"chat_template": "x"})
    elif place == "named":
        named = [{"name": "tool_use", "template": "y"}, {"name": "default", "template": "x"}]
        write(tokenizer / "tokenizer_config.json", {"chat_template": named})
    else:
        write(tmp_path / "own.jinja", "x")
        extra["chat_template"] = tmp_path / "own.jinja"
    (model,) = served(models=[{"triton_model": "m", "tokenizer": tokenizer, **extra}])
    assert model.template is not None


@pytest.mark.parametrize("adds", [True, False])
def test_whether_the_tokenizer_itself_adds_a_bos_is_asked_of_it(adds: bool, tokenizer: Path) -> None:
    made = Tokenizer(models.WordLevel({"<s>": 0, "a": 1}, unk_token="a"))
    if adds:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.save(str(tokenizer / "tokenizer.json"))
    (model,) = served(models=[{"triton_model": "m", "tokenizer": tokenizer}])
    assert model.added_bos == ("<s>" if adds else "")


def test_wrong_models_are_one_sentence_each(tmp_path: Path, tokenizer: Path) -> None:
    def sentence(**settings: Any) -> str:
        with pytest.raises(SettingsError) as caught:
            served(**settings)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "--model-repository" in sentence()
    assert "cannot be read" in sentence(model_repository=tmp_path / "nowhere")
    assert "no model with backend" in sentence(model_repository=tmp_path)
    assert "does not exist" in sentence(models=[{"triton_model": "m", "tokenizer": tmp_path / "nowhere"}])
    two = [{"triton_model": "m", "names": ["x"]}, {"triton_model": "n", "names": ["x"]}]
    assert "given to two models" in sentence(models=two)
    write(tokenizer / "tokenizer_config.json", "{")
    assert "tokenizer_config.json" in sentence(models=[{"triton_model": "m", "tokenizer": tokenizer}])
    write(tokenizer / "tokenizer_config.json", {"chat_template": "{% if %}"})
    assert "does not compile" in sentence(models=[{"triton_model": "m", "tokenizer": tokenizer}])


@pytest.mark.parametrize("said", [-1, "auto", None, True])
def test_a_context_length_that_only_the_engine_knows_is_not_guessed(said: Any, repository: Path) -> None:
    file = repository / "m" / "2" / "model.json"
    write(file, json.loads(file.read_text()) | {"max_model_len": said})
    (model,) = served(model_repository=repository)
    assert (model.max_model_len, model.trained_len) == (None, 2048)
