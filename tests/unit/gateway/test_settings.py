"""Settings: precedence, and one sentence for everything that is wrong."""

from pathlib import Path

import pytest

from gateway.settings import Settings, SettingsError, load, parser


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("port: 1001\nhost: 0.0.0.1\nmax_in_flight: 5\ntriton: [http://a:1]\n")
    monkeypatch.setenv("GATEWAY_PORT", "1002")
    monkeypatch.setenv("GATEWAY_HOST", "0.0.0.2")
    monkeypatch.setenv("GATEWAY_TRITON", "http://b:1, http://c:2")
    settings = load(["--config", str(file), "--port", "1003"])
    assert (settings.port, settings.host, settings.max_in_flight) == (1003, "0.0.0.2", 5)
    assert settings.triton == ["http://b:1", "http://c:2"]
    assert load(["--triton", "http://d:1", "--triton", "http://e:1"]).triton == ["http://d:1", "http://e:1"]


def test_models_from_yaml_and_json(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("models:\n- triton_model: m\n  names: [a, b]\n  structured_outputs_backend: xgrammar\n")
    (model,) = load(["--config", str(file)]).models
    assert (model.names, model.structured_outputs_backend) == (["a", "b"], "xgrammar")
    assert load(["--models", '[{"triton_model":"x"}]']).models[0].triton_model == "x"


@pytest.mark.parametrize(
    ("arguments", "yaml", "environment", "message"),
    [
        (["--port", "x"], "", {}, "'port'"),
        (["--port", "65536"], "", {}, "'port'"),
        (["--triton", "localhost:8000"], "", {}, "http://127.0.0.1:8000"),
        (["--models", "["], "", {}, "--models is not valid JSON"),
        (["--models", '[{"names":["x"]}]'], "", {}, "models.0.triton_model"),
        ([], "prot: 1", {}, "'prot' does not exist"),
        ([], "models: [{triton_model: m, tokeniser: x}]", {}, "models.0.tokeniser"),
        ([], "models: [{triton_model: m, structured_outputs_backend: x}]", {}, "structured_outputs_backend"),
        ([], "[1]", {}, "mapping"),
        ([], "a: [", {}, "not valid YAML"),
        ([], "", {"GATEWAY_PORT": "x"}, "'port'"),
        ([], "", {"GATEWAY_MODELS": "x"}, "models"),
        ([], "", {"GATEWAY_REQUEST_TIMEOUT": "0"}, "request_timeout"),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_it(
    arguments: list[str],
    yaml: str,
    environment: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load(["--config", str(file), *arguments])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.yaml cannot be read"):
        load(["--config", str(tmp_path / "nowhere.yaml")])


def test_every_setting_is_a_flag_with_a_help_text() -> None:
    text = " ".join(parser().format_help().split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description


def test_the_logged_settings_hold_no_password() -> None:
    settings = load(["--triton", "http://user:secret@host:8000"])
    assert "secret" not in str(settings.effective())
    assert "http://host:8000" in settings.effective()["triton"]
