"""The models of the mock server: what a model repository says of them, their state, and Triton's JSON about them.

Reads files; knows nothing of HTTP.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.mock_engine.backend import Dialect, Model, Tensor
from bench.mock_engine.tokens import FileTokenizer, PieceTokenizer, PromptTokenizer

DEFAULT_MAX_MODEL_LEN = 4096

State = Literal["", "LOADING", "READY", "UNLOADING", "UNAVAILABLE"]


class RepositoryError(Exception):
    """A model repository that cannot be used, in one sentence."""


@dataclass(slots=True)
class ServedModel:
    """A model of the repository and its state; state "" was never loaded."""

    name: str
    max_model_len: int
    tokenizer_file: Path | None
    state: State = ""
    declared_unready: bool = False
    """Set by a test: the server says of it that it is not ready."""
    in_flight: int = 0
    requests: int = 0
    last_inference_ms: int = 0
    loaded: Model | None = field(default=None, repr=False)

    @property
    def ready(self) -> bool:
        return self.state == "READY" and not self.declared_unready

    def load(self) -> None:
        if self.loaded is None:
            tokenizer: PromptTokenizer = FileTokenizer(self.tokenizer_file) if self.tokenizer_file else PieceTokenizer()
            self.loaded = Model(self.name, self.max_model_len, tokenizer)
        self.state = "READY"


def read_repository(folder: Path) -> dict[str, ServedModel]:
    """The models of a Triton model repository, by name. Raises RepositoryError."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if (entry / "config.pbtxt").is_file())
    except OSError as error:
        raise RepositoryError(f"the model repository {folder} cannot be read: {error.strerror}.") from None
    return {name: _read_model(name, folder / name / "1" / "model.json") for name in names}


def bare_model(name: str) -> ServedModel:
    """A model without a repository: the simple token rule and a context of 4096 tokens."""
    return ServedModel(name, DEFAULT_MAX_MODEL_LEN, None)


def _read_model(name: str, path: Path) -> ServedModel:
    try:
        engine_args = json.loads(path.read_bytes())
        max_model_len = engine_args.get("max_model_len", DEFAULT_MAX_MODEL_LEN)
        weights = engine_args.get("tokenizer") or engine_args.get("model") or ""
    except (OSError, ValueError, AttributeError) as error:
        raise RepositoryError(f"{path} cannot be read as vLLM's engine arguments: {error}.") from None
    # Absolute, or beside model.json; a name on a hub has no file here, and the simple rule counts its prompts.
    tokenizer_file = path.parent / weights / "tokenizer.json"
    return ServedModel(name, max_model_len, tokenizer_file if tokenizer_file.is_file() else None)


# Triton's JSON, as seen on tritonserver 2.51.


def metadata(model: ServedModel, dialect: Dialect) -> dict[str, Any]:
    return {
        "name": model.name,
        "versions": ["1"],
        "platform": "vllm",
        "inputs": [_tensor_metadata(tensor) for tensor in dialect.inputs],
        "outputs": [_tensor_metadata(tensor) for tensor in dialect.outputs],
    }


def _tensor_metadata(tensor: Tensor) -> dict[str, Any]:
    datatype = "BYTES" if tensor.data_type == "STRING" else tensor.data_type
    return {"name": tensor.name, "datatype": datatype, "shape": list(tensor.dims)}


def config(model: ServedModel, dialect: Dialect) -> dict[str, Any]:
    return {
        "name": model.name,
        "platform": "",
        "backend": "vllm",
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "input": [
            {
                "name": tensor.name,
                "data_type": f"TYPE_{tensor.data_type}",
                "format": "FORMAT_NONE",
                "dims": list(tensor.dims),
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": tensor.optional,
                "is_non_linear_format_io": False,
            }
            for tensor in dialect.inputs
        ],
        "output": [
            {
                "name": tensor.name,
                "data_type": f"TYPE_{tensor.data_type}",
                "dims": list(tensor.dims),
                "label_filename": "",
                "is_shape_tensor": False,
                "is_non_linear_format_io": False,
            }
            for tensor in dialect.outputs
        ],
        "instance_group": [{"name": f"{model.name}_0", "kind": "KIND_MODEL", "count": 1, "gpus": []}],
        "parameters": {},
        "model_transaction_policy": {"decoupled": True},
    }


def index(models: Iterable[ServedModel], only_ready: bool) -> list[dict[str, str]]:
    entries = []
    for model in sorted(models, key=lambda model: model.name):
        if only_ready and model.state != "READY":
            continue
        entry = {"name": model.name}
        if model.state:
            entry |= {"version": "1", "state": model.state}
        if model.state == "UNAVAILABLE":
            entry["reason"] = "unloaded"
        entries.append(entry)
    return entries


def statistics(model: ServedModel) -> dict[str, Any]:
    """Counts are real; the mock has no durations worth telling."""
    none: dict[str, int] = {"count": 0, "ns": 0}
    kinds = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    return {
        "name": model.name,
        "version": "1",
        "last_inference": model.last_inference_ms,
        "inference_count": model.requests,
        "execution_count": model.requests,
        "inference_stats": dict.fromkeys(kinds, none) | {"success": {"count": model.requests, "ns": 0}},
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


def metrics_page(served: Sequence[ServedModel]) -> str:
    """The two families of Triton's metrics that count requests."""
    success, pending = "nv_inference_request_success", "nv_inference_pending_request_count"
    lines = [
        f"# HELP {success} Number of successful inference requests, all batch sizes",
        f"# TYPE {success} counter",
        *(f'{success}{{model="{model.name}",version="1"}} {model.requests}' for model in served),
        f"# HELP {pending} Instantaneous number of pending requests awaiting execution.",
        f"# TYPE {pending} gauge",
        # vLLM's queue is not Triton's: this one stays 0 while requests wait in the engine.
        *(f'{pending}{{model="{model.name}",version="1"}} 0' for model in served),
    ]
    return "\n".join(lines) + "\n"
