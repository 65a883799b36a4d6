"""The deployments for a CPU, which `./dev up` and the tests start, and a run's copy of them."""

import json
from pathlib import Path

import pytest

from devtools import models, repository
from vllm_backend import contract

DEPLOYMENTS = [models.TINY, models.SMOLLM2]


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_the_configuration_declares_the_backend_s_contract(deployment: str) -> None:
    text = (repository.SHIPPED / deployment / "config.pbtxt").read_text()
    for kind, tensors in (("input", contract.INPUTS), ("output", contract.OUTPUTS)):
        block = text.partition(f"{kind} [\n")[2].partition("\n]")[0]
        declared = [line.strip().rstrip(",") for line in block.splitlines()]
        assert declared == [
            f'{{ name: "{tensor.name}", data_type: {tensor.data_type}, dims: [ {", ".join(map(str, tensor.dims))} ]'
            f"{', optional: true' if tensor.optional else ''} }}"
            for tensor in tensors
        ]


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_a_cpu_deployment_is_safe_with_seeds_and_fails_closed(deployment: str) -> None:
    arguments = json.loads((repository.SHIPPED / deployment / "1" / "model.json").read_text())
    assert arguments["enable_chunked_prefill"] is False
    assert arguments["max_num_batched_tokens"] >= arguments["max_model_len"]
    assert arguments["structured_outputs_config"] == {"backend": "guidance", "disable_any_whitespace": True}


def test_a_run_s_copy_names_the_folder_and_takes_overrides(tmp_path: Path) -> None:
    overrides = {"max_model_len": 512, "kv_cache_memory_bytes": None}
    repository.write_model(tmp_path, models.TINY, Path("/models/tiny"), overrides)
    arguments = json.loads((tmp_path / models.TINY / "1" / "model.json").read_text())
    assert arguments["model"] == "/models/tiny"
    assert arguments["max_model_len"] == 512
    assert "kv_cache_memory_bytes" not in arguments
    assert (tmp_path / models.TINY / "config.pbtxt").exists()
