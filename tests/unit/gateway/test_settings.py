"""The gateway's own settings: one sentence for everything that is wrong with one."""

from pathlib import Path

import pytest

from gateway.settings import Settings, load, parser
from tests.support.refusals import refusal, refusal_of_process


def test_tritons_from_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("triton: [http://a:1]\n")
    assert load(["--config", str(file)]).triton == ["http://a:1"]
    monkeypatch.setenv("GATEWAY_TRITON", "http://b:1, http://c:2")
    assert load(["--config", str(file)]).triton == ["http://b:1", "http://c:2"]
    assert load(["--triton", "http://d:1", "--triton", "http://e:1"]).triton == ["http://d:1", "http://e:1"]


def test_models_from_yaml_and_json(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("models:\n- triton_model: m\n  names: [a, b]\n  structured_outputs_backend: xgrammar\n")
    (model,) = load(["--config", str(file)]).models
    assert (model.names, model.structured_outputs_backend) == (["a", "b"], "xgrammar")
    assert load(["--models", '[{"triton_model":"x"}]']).models[0].triton_model == "x"


def test_a_state_file_that_could_not_be_written_ends_the_start(tmp_path: Path) -> None:
    file = tmp_path / "absent" / "state.json"
    flags = ["--port", "0", "--models", '[{"triton_model": "m"}]', "--state-file", str(file)]
    for workers in ("1", "2"):
        assert refusal_of_process("gateway", *flags, "--workers", workers) == (
            f"gateway: The setting 'state_file' is wrong: there is no folder {file.parent}; make it, or give another "
            "file."
        )


def sentence(*arguments: str) -> str:
    """The one sentence that refuses these flags and the environment."""
    return refusal(lambda: load(arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prot", "1"], "--prot"),
        (["--request-timeout", "inf"], "'request_timeout' (--request-timeout)"),
        (["--connect-timeout", "nan"], "'connect_timeout' (--connect-timeout)"),
        (["--models", "["], "'models' (--models) is wrong: it is not valid JSON"),
        (["--models", '[{"names":["x"]}]'], "'models[0].triton_model' (--models) is wrong: it is required"),
        (["--models", '[{"triton_model":"x","max_model_len":true}]'], "models[0].max_model_len"),
        (["--model-repository", ""], "'model_repository[0]' (--model-repository)"),
    ],
)
def test_a_wrong_flag_is_one_sentence_that_names_it(arguments: list[str], message: str) -> None:
    assert message in sentence(*arguments)


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("prot: 1", "'prot' (FILE) does not exist"),
        ("strict_fields: 1", "'strict_fields' (FILE)"),
        ("request_timeout: .inf", "'request_timeout' (FILE)"),
        ("connect_timeout: .nan", "'connect_timeout' (FILE)"),
        ("triton: []", "'triton' (FILE)"),
        ("triton: [1]", "'triton[0]' (FILE)"),
        ("model_repository: 5", "'model_repository' (FILE)"),
        ("model_repository: [' ']", "'model_repository[0]' (FILE)"),
        ("models: [{triton_model: m, tokeniser: x}]", "'models[0].tokeniser' (FILE) is wrong: it does not exist"),
        ("models: [{triton_model: m, structured_outputs_backend: x}]", "'models[0].structured_outputs_backend' (FILE)"),
        ("models: [{triton_model: m, tokenizer: ''}]", "'models[0].tokenizer' (FILE)"),
        ("models: [{triton_model: m, chat_template: ''}]", "'models[0].chat_template' (FILE)"),
        ("models: [{triton_model: m, chat_template: 5}]", "'models[0].chat_template' (FILE)"),
        ("models: [{triton_model: m, max_model_len: true}]", "'models[0].max_model_len' (FILE)"),
        ("models: [{triton_model: m, names: ['']}]", "'models[0].names[0]' (FILE)"),
        ("models: [{triton_model: m, names: [a, '  ']}]", "'models[0].names[1]' (FILE)"),
        ("models: [{triton_model: m, names: [a, b, a]}]", "the name 'a' is given twice"),
        ("models: [{triton_model: ''}]", "'models[0].triton_model' (FILE)"),
        ("models: [{triton_model: a b}]", "'models[0].triton_model' (FILE)"),
        ("models: [{triton_model: ../a}]", "'models[0].triton_model' (FILE)"),
        ("models: [{triton_model: ..}]", "'models[0].triton_model' (FILE)"),
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_it(yaml: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml)
    assert message.replace("FILE", str(file)) in sentence("--config", str(file))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("GATEWAY_PORT", "tcp://10.0.0.1:9000", "Kubernetes injects for a Service named 'gateway'"),
        ("GATEWAY_MODELS", "", "'models' (GATEWAY_MODELS)"),
        ("GATEWAY_MODEL_REPOSITORY", "a,", "'model_repository' (GATEWAY_MODEL_REPOSITORY)"),
        ("GATEWAY_REQUEST_TIMEOUT", "0", "'request_timeout' (GATEWAY_REQUEST_TIMEOUT)"),
        ("GATEWAY_TRITON", "http://a:1,b", "'triton[1]' (GATEWAY_TRITON)"),
        ("GATEWAY_TYPO", "1", "GATEWAY_TYPO"),
    ],
)
def test_a_wrong_variable_is_one_sentence_that_names_it(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert message in sentence()


@pytest.mark.parametrize("url", ["localhost:8000", "http://a?b=c", "http://user:secret@a"])
def test_what_is_no_base_url_is_refused(url: str) -> None:
    text = sentence("--triton", url)
    assert "'triton[0]' (--triton)" in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["--triton", "http://127.0.0.1:99999"], {}, "triton[0]"),
        (["--host", ""], {}, "'host'"),
        ([], {"GATEWAY_PORT": "tcp://10.0.0.1:9000"}, "Kubernetes"),
        (["--config", "/"], {}, "Is a directory"),
        (["--model-repository", "nowhere"], {}, "nowhere cannot be read"),
    ],
)
def test_the_process_ends_with_the_sentence_and_code_2(
    arguments: list[str], variables: dict[str, str], message: str
) -> None:
    assert message in refusal_of_process("gateway", *arguments, **variables)


def test_every_setting_is_a_flag_with_a_help_text() -> None:
    text = " ".join(parser().format_help().split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description
