"""Settings: precedence, and one sentence for everything that is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.settings import Settings, SettingsError, load, parser

ROOT = Path(__file__).parents[3]


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


def sentence(*arguments: str) -> str:
    """The one sentence that refuses these flags and the environment."""
    with pytest.raises(SettingsError) as caught:
        load(arguments)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 1000
    assert text.endswith(".")
    return text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "x"], "'port' (--port)"),
        (["--port", "65536"], "'port' (--port)"),
        (["--port"], "Argument --port"),
        (["--prot", "1"], "--prot"),
        (["--log-level", "loud"], "'log_level' (--log-level)"),
        (["--request-timeout", "inf"], "'request_timeout' (--request-timeout)"),
        (["--connect-timeout", "nan"], "'connect_timeout' (--connect-timeout)"),
        (["--models", "["], "'models' (--models) is wrong: it is not valid JSON"),
        (["--models", "[" * 100_000], "'models' (--models) is wrong: it is nested too deeply"),
        (["--models", '[{"names":["x"]}]'], "'models[0].triton_model' (--models) is wrong: it is required"),
        (["--models", '[{"triton_model":"x","triton_model":"y"}]'], "stands twice"),
        (["--models", '[{"triton_model":"x","max_model_len":true}]'], "models[0].max_model_len"),
        (["--model-repository", ""], "'model_repository' (--model-repository)"),
        (["--config", ""], "'config'"),
        (["--config", "/"], "Is a directory"),
        (["--config", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["--config", "x" * 5000], "File name too long"),
    ],
)
def test_a_wrong_flag_is_one_sentence_that_names_it(arguments: list[str], message: str) -> None:
    assert message in sentence(*arguments)


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("prot: 1", "'prot' (FILE) does not exist"),
        ("[1]", "FILE must hold a YAML mapping"),
        ("a: [", "FILE is not valid YAML: line 1"),
        ("\x01", "FILE is not valid YAML"),
        ("[ " * 5000, "FILE is nested too deeply"),
        (b"host: \xff", "FILE cannot be read: it is not UTF-8 text"),
        ("1: 2", "line 1: a key must be text"),
        ("~: 2", "line 1: a key must be text"),
        ("models: [{1: 2}]", "line 1: a key must be text"),
        ("port: 1\nport: 2", "line 2: the key 'port' stands there twice"),
        ("models: [{triton_model: m, triton_model: n}]", "'triton_model' stands there twice"),
        ("port: true", "'port' (FILE)"),
        ("port: '1'", "'port' (FILE)"),
        ("port: 1.0", "'port' (FILE)"),
        ("port:", "'port' (FILE)"),
        ("host: 2020-01-01", "'host' (FILE)"),
        ("strict_fields: 1", "'strict_fields' (FILE)"),
        ("request_timeout: true", "'request_timeout' (FILE)"),
        ("request_timeout: .inf", "'request_timeout' (FILE)"),
        ("connect_timeout: .nan", "'connect_timeout' (FILE)"),
        ("triton: []", "'triton' (FILE)"),
        ("triton: [1]", "'triton[0]' (FILE)"),
        ("model_repository: [a]", "'model_repository' (FILE)"),
        ("model_repository: ' '", "'model_repository' (FILE)"),
        ("models: &a [*a]", "'models[0]' (FILE) is wrong: it must be a mapping"),
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
def test_a_wrong_file_is_one_sentence_that_names_it(yaml: str | bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_bytes(yaml if isinstance(yaml, bytes) else yaml.encode())
    assert message.replace("FILE", str(file)) in sentence("--config", str(file))


def test_what_a_flag_overrides_must_be_right_too(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("port: true")
    assert "'port'" in sentence("--config", str(file), "--port", "1")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("GATEWAY_PORT", "x", "'port' (GATEWAY_PORT)"),
        ("GATEWAY_PORT", "true", "'port' (GATEWAY_PORT)"),
        ("GATEWAY_PORT", "tcp://10.0.0.1:9000", "Kubernetes injects for a Service named 'gateway'"),
        ("GATEWAY_HOST", "", "'host' (GATEWAY_HOST)"),
        ("GATEWAY_MODELS", "x", "'models' (GATEWAY_MODELS) is wrong: it is not valid JSON"),
        ("GATEWAY_MODELS", "", "'models' (GATEWAY_MODELS)"),
        ("GATEWAY_MODEL_REPOSITORY", "", "'model_repository' (GATEWAY_MODEL_REPOSITORY)"),
        ("GATEWAY_TRITON", "http://a:1,", "'triton[1]' (GATEWAY_TRITON)"),
        ("GATEWAY_REQUEST_TIMEOUT", "0", "'request_timeout' (GATEWAY_REQUEST_TIMEOUT)"),
        ("GATEWAY_REQUEST_TIMEOUT", "nan", "'request_timeout' (GATEWAY_REQUEST_TIMEOUT)"),
        ("GATEWAY_STRICT_FIELDS", "maybe", "'strict_fields' (GATEWAY_STRICT_FIELDS)"),
        ("GATEWAY_CONFIG", "nowhere.yaml", "nowhere.yaml cannot be read"),
        ("GATEWAY_CONFIG", "", "'config'"),
        ("GATEWAY_TYPO", "1", "GATEWAY_TYPO"),
        ("GATEWAY_TYPO_PORT", "1", "GATEWAY_TYPO_PORT"),
        ("GATEWAY_", "1", "GATEWAY_ "),
        ("gateway_port", "1", "GATEWAY_PORT"),
    ],
)
def test_a_wrong_variable_is_one_sentence_that_names_it(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert message in sentence()


def test_variables_are_converted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("max_in_flight: 5")
    monkeypatch.setenv("GATEWAY_CONFIG", str(file))
    monkeypatch.setenv("GATEWAY_PORT", "1")
    monkeypatch.setenv("GATEWAY_STRICT_FIELDS", "yes")
    monkeypatch.setenv("GATEWAY_REQUEST_TIMEOUT", "1.5")
    monkeypatch.setenv("GATEWAY_MODELS", '[{"triton_model": "m", "tokenizer": "t", "max_model_len": 5}]')
    settings = load([])
    assert (settings.port, settings.strict_fields, settings.request_timeout) == (1, True, 1.5)
    assert (settings.max_in_flight, settings.models[0].tokenizer) == (5, Path("t"))


def test_what_kubernetes_injects_for_services_of_a_like_name_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "tcp://10.0.0.1:9000"
    for service in ("GATEWAY", "GATEWAY_API", "GATEWAY_2"):
        values = {"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "9000", "SERVICE_PORT_HTTP_API": "9000", "PORT": address}
        tcp = {"": address, "_PROTO": "tcp", "_PORT": "9000", "_ADDR": "10.0.0.1"}
        for name, value in (values | {f"PORT_9000_TCP{part}": value for part, value in tcp.items()}).items():
            monkeypatch.setenv(f"{service}_{name}", value)
    assert load(["--port", "1"]).port == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://a",
        "https://a.b:1",
        "HTTP://A_b-1.:65535/",
        "http://127.0.0.1:8000/x/y",
        "http://[::1]:8000",
        "http://[::1]",
    ],
)
def test_base_urls(url: str) -> None:
    assert load(["--triton", url]).triton == [url]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "not a base URL"),
        ("localhost:8000", "http://127.0.0.1:8000"),
        ("ftp://a", "not a base URL"),
        ("http://", "not a base URL"),
        ("http://127.0.0.1:99999", "between 1 and 65535"),
        ("http://127.0.0.1:0", "between 1 and 65535"),
        ("http://127.0.0.1:abc", "not a base URL"),
        ("http://127.0.0.1:", "not a base URL"),
        ("http://127.0.0.1:٣", "not a base URL"),
        ("http://127.0.0.999", "not a base URL"),
        ("http://a b:1", "not a base URL"),
        ("http://a:1/x y", "not a base URL"),
        ("http://a\n:1", "not a base URL"),
        ("http://a..b", "not a base URL"),
        (f"http://{'a' * 64}", "not a base URL"),
        (f"http://{'a.' * 150}a", "not a base URL"),
        (f"http://{'a' * 300}", "not a base URL"),
        ("http://é", "not a base URL"),
        ("http://[::1", "not a base URL"),
        ("http://[::g]", "not a base URL"),
        ("http://::1", "not a base URL"),
        ("http://a?b=c", "query or a fragment"),
        ("http://a#b", "query or a fragment"),
        ("http://user:secret@a", "user:password@"),
        ("http://user@a", "user:password@"),
        ("http://user:sec/ret@[a", "user:password@"),
    ],
)
def test_what_is_no_base_url_is_refused(url: str, message: str) -> None:
    text = sentence("--triton", url)
    assert message in text
    assert "triton[0]" in text
    assert "sec" not in text


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "::", "a-b.c"])
def test_hosts(host: str) -> None:
    assert load(["--host", host]).host == host


@pytest.mark.parametrize("host", ["", " ", "a b", "[::1]", "a" * 64, "1.2.3", "a:1", "http://a"])
def test_what_is_no_host_is_refused(host: str) -> None:
    assert "'host' (--host)" in sentence("--host", host)


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
    command = [sys.executable, "-m", "gateway", *arguments]
    ended = subprocess.run(command, env=os.environ | variables, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("gateway: ")
    assert message in line


def test_every_setting_is_a_flag_with_a_help_text() -> None:
    text = " ".join(parser().format_help().split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description
