"""Served models: what the repository and the tokenizer's folder say."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, processors

from gateway.model_list import ModelList
from gateway.models import ServedModel
from gateway.settings import load
from service_base.errors import SettingsError
from tests.support.permissions import without_roots_rights
from tests.support.refusals import refusal

ROOT = Path(__file__).parents[3]


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


def served(*, model_repository: Path | None = None, models: list[dict[str, Any]] | None = None) -> list[ServedModel]:
    repository = ["--model-repository", str(model_repository)] if model_repository else []
    named = ["--models", json.dumps(models, default=str)] if models else []
    served = ModelList(load([*repository, *named])).served
    for broken in served.broken.values():
        # Of a model that the settings do not name; the list has others of its own.
        raise SettingsError(broken)
    return list(served)


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


def test_the_tokenizer_is_there_where_its_file_is(tokenizer: Path) -> None:
    Tokenizer(models.WordLevel({"<s>": 0, "a": 1}, unk_token="a")).save(str(tokenizer / "tokenizer.json"))
    (model,) = served(models=[{"triton_model": "m", "tokenizer": tokenizer}])
    assert model.no_tokenizer == ""
    assert model.tokenizer is not None
    assert model.tokenizer.encode("a", add_special_tokens=False) == [1]
    # Only tokenizer_config.json says that it is special.
    assert model.tokenizer.special_ids == {0}


@pytest.mark.parametrize("folder", [True, False])
def test_without_a_tokenizer_file_there_is_none_and_the_setting_to_give_is_named(folder: bool, tokenizer: Path) -> None:
    (model,) = served(models=[{"triton_model": "m", "names": ["n"]} | ({"tokenizer": tokenizer} if folder else {})])
    assert model.tokenizer is None
    assert "models[].tokenizer" in model.no_tokenizer
    assert "'n'" in model.no_tokenizer
    assert ("tokenizer.json" in model.no_tokenizer) == folder


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


def sentence(**settings: Any) -> str:
    """The one sentence that refuses these models."""
    return refusal(lambda: served(**settings))


def test_wrong_models_are_one_sentence_each(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert "--model-repository" in sentence()
    assert f"{nowhere} cannot be read" in sentence(model_repository=nowhere)
    assert f"{nowhere} of 'm' does not exist" in sentence(models=[{"triton_model": "m", "tokenizer": nowhere}])
    assert "models[].tokenizer" in sentence(models=[{"triton_model": "m", "chat_template": nowhere}])
    two = [{"triton_model": "m", "names": ["x"]}, {"triton_model": "n", "names": ["x"]}]
    assert "given to two models" in sentence(models=two)


# Written in place of a file: a folder stands for whatever the system refuses to read.
FOLDER = object()
DEEP = "[" * 100_000


def put(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if content is FOLDER:
        file.unlink(missing_ok=True)
        file.mkdir()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        write(file, content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config.json", "{", "is not valid JSON"),
        ("tokenizer_config.json", "[1]", "must hold a JSON object"),
        ("tokenizer_config.json", DEEP, "is nested too deeply"),
        ("tokenizer_config.json", b"\xff", "is not UTF-8"),
        ("tokenizer_config.json", FOLDER, "Is a directory"),
        ("tokenizer_config.json", {"chat_template": "{% if %}"}, "does not compile"),
        ("tokenizer_config.json", {"chat_template": "{{ x | no_such_filter }}"}, "does not compile"),
        ("tokenizer_config.json", {"chat_template": [1]}, "chat_template: it must be text"),
        ("tokenizer_config.json", {"chat_template": 5}, "chat_template: it must be text"),
        ("tokenizer_config.json", {"chat_template": {"default": "x"}}, "chat_template: it must be text"),
        ("tokenizer_config.json", {"chat_template": [{"name": "default", "template": 5}]}, "chat_template: it must be"),
        ("tokenizer_config.json", {"chat_template": "{% if x %}" * 5000 + "{% endif %}" * 5000}, "nested too deeply"),
        ("tokenizer_config.json", {"chat_template": "{% for x in y %}" * 25 + "{% endfor %}" * 25}, "too deeply"),
        ("tokenizer_config.json", {"chat_template": "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}"}, "too deeply"),
        ("chat_template.jinja", FOLDER, "Is a directory"),
        ("chat_template.jinja", b"\xff", "is not UTF-8"),
        ("chat_template.jinja", "{% if %}", "does not compile"),
        ("special_tokens_map.json", "[]", "must hold a JSON object"),
        ("special_tokens_map.json", {"eos_token": ["x"]}, "eos_token must be text"),
        ("tokenizer.json", "{", "is not a tokenizer"),
        ("tokenizer.json", "{}", "is not a tokenizer"),
        ("tokenizer.json", DEEP, "is not a tokenizer"),
        ("tokenizer.json", b"\xff", "is not UTF-8"),
        ("tokenizer.json", FOLDER, "Is a directory"),
        ("config.json", "nonsense", "is not valid JSON"),
        ("config.json", FOLDER, "Is a directory"),
        ("generation_config.json", "1", "must hold a JSON object"),
        ("generation_config.json", {"temperature": "hot", "max_new_tokens": "many"}, "temperature"),
        ("generation_config.json", {"max_new_tokens": "many"}, "max_new_tokens"),
        ("generation_config.json", {"max_new_tokens": 0}, "max_new_tokens"),
        ("generation_config.json", {"temperature": True}, "temperature"),
        ("generation_config.json", '{"temperature": NaN}', "temperature"),
        ("generation_config.json", {"top_k": 1.5}, "top_k"),
        ("generation_config.json", {"top_p": 0}, "top_p"),
    ],
)
def test_a_wrong_file_of_the_tokenizer_is_one_sentence_that_names_it(
    name: str, content: Any, message: str, tokenizer: Path
) -> None:
    put(tokenizer / name, content)
    text = sentence(models=[{"triton_model": "m", "tokenizer": tokenizer}])
    assert str(tokenizer) in text
    # Special tokens stand in either of two files.
    assert name in text or "eos_token" in text
    assert message in text


def test_a_tokenizer_that_panics_is_one_sentence(tokenizer: Path) -> None:
    made = Tokenizer(models.WordLevel({"<s>": 0, "a": 1}, unk_token="a"))
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    broken = json.loads(made.to_str())
    del broken["post_processor"]["special_tokens"]["<s>"]
    write(tokenizer / "tokenizer.json", broken)
    assert "tokenizer.json is not a tokenizer" in sentence(models=[{"triton_model": "m", "tokenizer": tokenizer}])


def test_a_link_to_nowhere_is_not_an_absent_file(tokenizer: Path) -> None:
    (tokenizer / "generation_config.json").unlink()
    assert served(models=[{"triton_model": "m", "tokenizer": tokenizer}])[0].defaults == {}
    (tokenizer / "generation_config.json").symlink_to("gone")
    assert "generation_config.json cannot be read" in sentence(models=[{"triton_model": "m", "tokenizer": tokenizer}])


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), (FOLDER, "Is a directory"), (b"\xff", "is not UTF-8"), ("{% if %}", "does not compile")],
)
def test_a_wrong_chat_template_is_one_sentence_that_names_it(
    content: Any, message: str, tokenizer: Path, tmp_path: Path
) -> None:
    file = tmp_path / "own.jinja"
    if content is not None:
        put(file, content)
    text = sentence(models=[{"triton_model": "m", "tokenizer": tokenizer, "chat_template": file}])
    assert str(file) in text
    assert message in text


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "must hold a JSON object"),
        (DEEP, "is nested too deeply"),
        (b"\xff", "is not UTF-8"),
        (FOLDER, "Is a directory"),
        ({"structured_outputs_config": "guidance"}, "structured_outputs_config: it must be a mapping"),
        ({"structured_outputs_config": ["guidance"]}, "structured_outputs_config: it must be a mapping"),
        ({"structured_outputs_config": {"backend": 5}}, "structured_outputs_config.backend: it must be 'guidance'"),
        ({"structured_outputs_config": {"backend": ["x"]}}, "structured_outputs_config.backend: it must be"),
        ({"structured_outputs_config": {"backend": "foo"}}, "structured_outputs_config.backend: it must be"),
        ({"model": 5}, "model: it must be a valid string"),
        ({"model": ["m"]}, "model: it must be a valid string"),
        ({"model": {"m": 1}}, "model: it must be a valid string"),
        ({"model": True}, "model: it must be a valid string"),
        ({"tokenizer": 5}, "tokenizer: it must be a valid string"),
    ],
)
def test_a_wrong_model_json_is_one_sentence_that_names_it(engine: Any, message: str, repository: Path) -> None:
    file = repository / "m" / "2" / "model.json"
    put(file, engine)
    text = sentence(model_repository=repository)
    assert str(file) in text
    assert message in text


def test_a_model_that_cannot_be_a_path_is_one_sentence(repository: Path) -> None:
    write(repository / "m" / "2" / "model.json", {"model": "x" * 5000})
    assert "File name too long" in sentence(model_repository=repository)


@pytest.mark.parametrize(("content", "message"), [(FOLDER, "Is a directory"), (b"\xff", "is not UTF-8")])
def test_a_config_that_cannot_be_read_is_one_sentence_that_names_it(
    content: Any, message: str, repository: Path
) -> None:
    put(repository / "m" / "config.pbtxt", content)
    text = sentence(model_repository=repository)
    assert str(repository / "m" / "config.pbtxt") in text
    assert message in text


def test_a_vllm_model_without_engine_arguments_is_one_sentence(repository: Path) -> None:
    write(repository / "new" / "config.pbtxt", "backend: 'vllm'")
    # None of these is a version of Triton's.
    for name in ("0", "01", "²", "latest"):
        write(repository / "new" / name / "model.json", {})
    assert f"{repository / 'new'} has the backend vllm but no <version>/model.json" in sentence(
        model_repository=repository
    )


def test_a_folder_that_cannot_be_in_a_url_is_one_sentence(repository: Path) -> None:
    (repository / "m").rename(repository / "m 1")
    assert f"{repository / 'm 1'} is named wrong" in sentence(model_repository=repository)


def test_a_commented_backend_is_none(repository: Path) -> None:
    write(repository / "m" / "config.pbtxt", '# backend: "vllm"\nbackend: "python"')
    assert served(model_repository=repository) == []


def test_other_folders_than_those_of_the_configured_models_are_not_read(repository: Path) -> None:
    write(repository / "n" / "config.pbtxt", 'backend: "vllm"')
    write(repository / "n" / "1" / "model.json", "{")
    (model,) = served(model_repository=repository, models=[{"triton_model": "m"}])
    assert model.max_model_len == 1024


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
@pytest.mark.parametrize(
    "place", [".", "m", "m/2", "m/config.pbtxt", "m/2/model.json", "hf", "hf/config.json", "hf/tokenizer_config.json"]
)
def test_what_may_not_be_read_is_not_taken_for_absent(place: str, mode: int) -> None:
    # pytest's own folder is closed to all but its owner.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "m" / "config.pbtxt", 'backend: "vllm"')
        write(folder / "m" / "2" / "model.json", {"model": str(folder / "hf")})
        write(folder / "hf" / "config.json", {})
        write(folder / "hf" / "tokenizer_config.json", {"chat_template": "x"})
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        forbidden = folder / place
        forbidden.chmod(mode)
        opens = mode == (0o111 if place == "hf" else 0o444 if forbidden.is_file() else None)
        with without_roots_rights():
            if opens:
                assert served(model_repository=folder)[0].template is not None
            else:
                text = sentence(model_repository=folder)
                assert "Permission denied" in text
                assert str(forbidden.resolve()) in text
        folder.chmod(0o755)
        forbidden.chmod(0o755)


def test_the_file_systems_own_folder_is_no_model(repository: Path) -> None:
    put(repository / "lost+found" / "config.pbtxt", FOLDER)
    assert [model.triton_model for model in served(model_repository=repository)] == ["m"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("hf/tokenizer.json", "{}"),
        ("hf/tokenizer_config.json", DEEP),
        ("repository/m/2/model.json", {"model": ["x"]}),
        ("repository/m/config.pbtxt", FOLDER),
    ],
)
def test_the_process_ends_with_the_sentence_and_code_2(
    file: str, content: Any, repository: Path, tmp_path: Path
) -> None:
    put(tmp_path / file, content)
    named = '[{"triton_model": "m"}]'
    command = [sys.executable, "-m", "gateway", "--model-repository", str(repository), "--models", named]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"gateway: {tmp_path / file} ")


@pytest.mark.parametrize("said", [-1, "auto", None, True])
def test_a_context_length_that_only_the_engine_knows_is_not_guessed(said: Any, repository: Path) -> None:
    file = repository / "m" / "2" / "model.json"
    write(file, json.loads(file.read_text()) | {"max_model_len": said})
    (model,) = served(model_repository=repository)
    assert (model.max_model_len, model.trained_len) == (None, 2048)


@pytest.mark.parametrize(
    ("arguments", "defaults"),
    [
        ({}, {"temperature": 0.6}),
        ({"generation_config": "auto"}, {"temperature": 0.6}),
        ({"generation_config": "vllm"}, {}),
        ({"override_generation_config": {"top_k": 5}}, {"temperature": 0.6, "top_k": 5}),
        (
            {"generation_config": "vllm", "override_generation_config": {"frequency_penalty": 0.5}},
            {"frequency_penalty": 0.5},
        ),
    ],
)
def test_sampling_defaults_come_from_where_the_engine_arguments_say(
    arguments: dict[str, Any], defaults: dict[str, Any], repository: Path
) -> None:
    file = repository / "m" / "2" / "model.json"
    write(file, json.loads(file.read_text()) | arguments)
    (model,) = served(model_repository=repository)
    assert model.defaults == defaults


@pytest.mark.parametrize(
    ("template", "settings", "expected"),
    [
        ("{{ bos_token }}", {}, (None, None)),
        ('{# <tool_call>{"name" #}', {}, ("hermes", None)),
        ('{# <tool_call>{"name" </think> #}', {}, ("hermes", "think")),
        ('{# <tool_call>{"name" </think> #}', {"tool_parser": "none", "reasoning_parser": "none"}, (None, None)),
        ("{{ bos_token }}", {"tool_parser": "mistral", "reasoning_parser": "think"}, ("mistral", "think")),
    ],
)
def test_parsers_are_set_or_recognised_from_the_template(
    template: str, settings: dict[str, Any], expected: tuple[str | None, str | None], tokenizer: Path
) -> None:
    write(tokenizer / "chat_template.jinja", template)
    (model,) = served(models=[{"triton_model": "m", "tokenizer": tokenizer} | settings])
    assert (model.output.tool_parser, model.output.reasoning_parser) == expected


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"tool_parser": "hermess"}, ["tool_parser", "hermes"]),
        ({"reasoning_parser": ""}, ["reasoning_parser", "think"]),
        ({"tool_structural_tag": True, "tool_parser": "hermes"}, ["tool_structural_tag", "xgrammar"]),
        (
            {"tool_structural_tag": True, "tool_parser": "qwen3_coder", "structured_outputs_backend": "xgrammar"},
            ["tool_structural_tag", "qwen3_coder"],
        ),
        ({"tool_structural_tag": True, "structured_outputs_backend": "xgrammar"}, ["tool_structural_tag", "none"]),
    ],
)
def test_a_wrong_parser_is_one_sentence(settings: dict[str, Any], names: list[str], tokenizer: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        served(models=[{"triton_model": "m", "tokenizer": tokenizer} | settings])
    assert all(name in str(caught.value) for name in names)


def test_a_structural_tag_where_it_can_be_had(tokenizer: Path) -> None:
    settings = {"tool_structural_tag": True, "tool_parser": "hermes", "structured_outputs_backend": "xgrammar"}
    (model,) = served(models=[{"triton_model": "m", "tokenizer": tokenizer} | settings])
    assert model.tool_structural_tag
