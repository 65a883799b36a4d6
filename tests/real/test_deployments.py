"""Every shipped deployment, as far as a machine without GPUs can judge it: its arguments by vLLM's own classes, its
configuration by a real tritonserver. The two small ones are loaded and asked in all other tests of this folder."""

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools import environments, triton
from devtools.processes import Service
from devtools.pythons import engine_python
from devtools.repository import SHIPPED
from devtools.stack import HOST, Ports, answers, engine_environment, server_command
from tests.support.waiting import wait_for

DEPLOYMENTS = sorted(path.parent.name for path in SHIPPED.glob("*/config.pbtxt"))

pytestmark = pytest.mark.long


def _llama(hidden: int, layers: int, heads: int, intermediate: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "intermediate_size": intermediate,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "dtype": "bfloat16",
    }


# The sizes of the models that the deployments name: all that vLLM reads of a model before its weights.
_MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": _llama(4096, 32, 32, 14336),
    "meta-llama/Llama-3.3-70B-Instruct": _llama(8192, 80, 64, 28672),
    "/models/llama-3.1-405b-instruct/current": _llama(16384, 126, 128, 53248),
    "/models/qwen3-235b-a22b-instruct-2507/current": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 4096,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
        "max_position_embeddings": 262144,
        "dtype": "bfloat16",
    },
    "HuggingFaceTB/SmolLM2-135M-Instruct": _llama(576, 30, 9, 1536) | {"num_key_value_heads": 3},
    "tiny-random": _llama(64, 2, 8, 128),
}

# What vLLM refuses on a CPU, and what is taken instead, so that all the other values are judged as well.
_NOT_HERE: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "several-nodes": [
        ("Failed to import Ray", {"distributed_executor_backend": "mp", "nnodes": 2}),
    ],
    "moe-wide-ep": [
        (
            "load balancing is only supported on CUDA",
            {"enable_eplb": False, "eplb_config": None, "data_parallel_backend": "mp"},
        ),
    ],
}


@pytest.fixture(scope="module")
def judge(engine_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function: engine arguments by name → vLLM's errors by name. The models are folders without weights."""
    folder = tmp_path_factory.mktemp("models")
    for model, configuration in _MODELS.items():
        (folder / model.replace("/", "--")).mkdir()
        (folder / model.replace("/", "--") / "config.json").write_text(json.dumps(configuration))

    def ask(deployments: dict[str, dict[str, Any]]) -> dict[str, str | None]:
        placed = {
            name: arguments | {"model": str(folder / str(arguments["model"]).replace("/", "--"))}
            for name, arguments in deployments.items()
        }
        engine = environments.engine()
        script = Path(__file__).with_name("deployments_in_vllm.py")
        done = subprocess.run(
            [engine.python, "-I", script],
            input=json.dumps(placed),
            env=engine_environment(engine, folder),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
        return found

    return ask


def test_vllm_s_own_classes_take_every_value(judge: Any) -> None:
    deployments = {name: json.loads((SHIPPED / name / "1" / "model.json").read_text()) for name in DEPLOYMENTS}
    changed = {
        name: {key: value for key, value in (deployments[name] | change).items() if value is not None}
        for name, changes in _NOT_HERE.items()
        for _, change in changes
    }
    one_gpu, experts = deployments["one-gpu"], deployments["moe-wide-ep"] | {"data_parallel_backend": "mp"}
    # The same classes refuse what is wrong, with this in the error, so that their silence says something.
    wrong: dict[str, tuple[str, dict[str, Any]]] = {
        "an unknown key": ("max_sequences", one_gpu | {"max_sequences": 1}),
        "an unknown all-to-all": ("all2all_backend", one_gpu | {"all2all_backend": "pigeons"}),
        "copies without EPLB": ("num_redundant_experts", experts | {"enable_eplb": False}),
        "an unknown publisher": ("publisher", one_gpu | {"kv_events_config": {"publisher": "radio"}}),
        "heads that cannot be divided": ("divisible", deployments["tensor-parallel"] | {"tensor_parallel_size": 3}),
    }
    found = judge(
        deployments
        | {f"{name}, changed": arguments for name, arguments in changed.items()}
        | {name: arguments for name, (_, arguments) in wrong.items()}
    )
    for name in DEPLOYMENTS:
        for refusal, _ in _NOT_HERE.get(name, []):
            assert refusal in (found.pop(name) or "nothing"), name
    for name, (word, _) in wrong.items():
        assert word in (found.pop(name) or "nothing"), name
    assert {name: error for name, error in found.items() if error} == {}


# A backend that takes every model, so that only Triton's own reading of the configuration is judged.
_TAKES_ALL = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""


@pytest.fixture
def server(engine_platform: None, tmp_path: Path) -> Iterator[tuple[str, Path, Path]]:
    """A tritonserver whose backend `vllm` takes every model: its URL, its repository with all
    deployments, its log."""
    tree = triton.server(engine_python())
    repository, backends = tmp_path / "repository", tmp_path / "backends"
    shutil.copytree(SHIPPED, repository)
    (backends / "vllm").mkdir(parents=True)
    (backends / "python").symlink_to(tree / "backends" / "python")
    (backends / "vllm" / "model.py").write_text(_TAKES_ALL)
    (tmp_path / "metrics").mkdir()
    ports = Ports.free()
    shared_memory = f"triton_vllm_stack_deployments_{ports.triton_http}_"
    service = Service(
        "triton",
        server_command(tree, repository, backends, ports, shared_memory),
        tmp_path / "triton.log",
        env=engine_environment(environments.engine(), tmp_path / "metrics"),
        cwd=tmp_path / "metrics",
        leftovers=(f"/dev/shm/{shared_memory}*",),
    )
    url = f"http://{HOST}:{ports.triton_http}"
    try:
        wait_for(lambda: answers(f"{url}/v2/health/ready") or service.exit_code, "tritonserver")
        assert service.exit_code is None, service.output()
        yield url, repository, service.log
    finally:
        service.kill()
        service.wait()


def _load(url: str, name: str) -> str:
    """Triton's error; empty if it loads."""
    request = urllib.request.Request(f"{url}/v2/repository/models/{name}/load", data=b"{}")
    try:
        with urllib.request.urlopen(request):
            return ""
    except urllib.error.HTTPError as error:
        return str(json.load(error)["error"])


def test_triton_reads_every_configuration(server: tuple[str, Path, Path]) -> None:
    url, repository, log = server
    for name in DEPLOYMENTS:
        assert _load(url, name) == "", name
        with urllib.request.urlopen(f"{url}/v2/models/{name}/config") as answer:
            configuration = json.load(answer)
        assert configuration["backend"] == "vllm"
        assert configuration["model_transaction_policy"] == {"decoupled": True}
        assert configuration["instance_group"][0]["kind"] == "KIND_MODEL"
        assert "send_admission" in {one["name"] for one in configuration["input"]}
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v2/repository/models/{name}/unload", data=b"{}")):
            pass
    # The same server refuses what is wrong, so the above says something.
    broken = repository / "one-gpu" / "config.pbtxt"
    broken.write_text(broken.read_text().replace("KIND_MODEL", "KIND_ABACUS"))
    assert _load(url, "one-gpu") == "failed to load 'one-gpu', failed to poll from model repository"
    assert "KIND_ABACUS" in log.read_text()
