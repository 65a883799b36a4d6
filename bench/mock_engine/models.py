"""The models of the mock server: what the model repositories say of them, their state, and Triton's JSON about them.

Reads files; knows nothing of HTTP.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.mock_engine.backend import Dialect, Model, Tensor
from bench.mock_engine.tokens import FileTokenizer, PieceTokenizer, PromptTokenizer

DEFAULT_MAX_MODEL_LEN = 4096

State = Literal["", "LOADING", "READY", "UNLOADING", "UNAVAILABLE"]


class RepositoryError(Exception):
    """A model repository, or an entry of it, that cannot be used, in one sentence."""


@dataclass(slots=True)
class ServedModel:
    """A model and its state; state "" was never loaded. Without a `folder`, as where there is no repository, it has the
    simple token rule and a context of 4096 tokens."""

    name: str
    folder: Path | None = None
    state: State = ""
    reason: str = ""
    """Why it is UNAVAILABLE."""
    declared_unready: bool = False
    """Set by a test: the server says of it that it is not ready."""
    in_flight: int = 0
    requests: int = 0
    last_inference_ms: int = 0
    loaded: Model | None = field(default=None, repr=False)
    loaded_files: tuple[int, ...] = ()
    """When those were written that it was loaded from."""

    @property
    def ready(self) -> bool:
        return self.state == "READY" and not self.declared_unready

    def has_changed(self) -> bool:
        """Whether loading it again would make another model of it."""
        return self.loaded is None or self.loaded_files != self._files()

    def load(self) -> None:
        """Raises RepositoryError; a model that was loaded before stays as it is."""
        files = self._files()
        max_model_len, tokenizer_file = _engine_arguments(self.folder) if self.folder else (DEFAULT_MAX_MODEL_LEN, None)
        tokenizer: PromptTokenizer = FileTokenizer(tokenizer_file) if tokenizer_file else PieceTokenizer()
        self.loaded = Model(self.name, max_model_len, tokenizer)
        self.loaded_files = files
        self.state, self.reason = "READY", ""

    def _files(self) -> tuple[int, ...]:
        if self.folder is None:
            return ()
        files = (self.folder / "config.pbtxt", self.folder / "1" / "model.json")
        return tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)


def entries(repositories: Iterable[Path]) -> dict[str, list[Path]]:
    """The models' folders in all repositories as they are now, by name. Raises RepositoryError."""
    found: dict[str, list[Path]] = {}
    for repository in repositories:
        try:
            folders = sorted(folder for folder in repository.iterdir() if (folder / "config.pbtxt").is_file())
        except OSError as error:
            raise RepositoryError(f"the model repository {repository} cannot be read: {error.strerror}.") from None
        for folder in folders:
            found.setdefault(folder.name, []).append(folder)
    return found


def _engine_arguments(folder: Path) -> tuple[int, Path | None]:
    """The context length and the file of the tokenizer, if it has one here."""
    path = folder / "1" / "model.json"
    try:
        engine_args = json.loads(path.read_bytes())
        max_model_len = engine_args.get("max_model_len", DEFAULT_MAX_MODEL_LEN)
        weights = engine_args.get("tokenizer") or engine_args.get("model") or ""
    except (OSError, ValueError, AttributeError) as error:
        raise RepositoryError(f"{path} cannot be read as vLLM's engine arguments: {error}.") from None
    # Absolute, or beside model.json; a name on a hub has no file here, and the simple rule counts its prompts.
    tokenizer_file = path.parent / weights / "tokenizer.json"
    return max_model_len, tokenizer_file if tokenizer_file.is_file() else None


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


def index(models: Iterable[ServedModel], twice: Collection[str], only_ready: bool) -> list[dict[str, str]]:
    """Of these models; `twice` are the names that lie in two repositories."""
    rows = []
    for model in sorted(models, key=lambda model: model.name):
        row = {"name": model.name}
        if model.name in twice:
            row |= {"state": "UNAVAILABLE", "reason": "model appears in two or more repositories"}
        elif model.state:
            row |= {"version": "1", "state": model.state}
            if model.state == "UNAVAILABLE":
                row["reason"] = model.reason
        if not only_ready or row.get("state") == "READY":
            rows.append(row)
    return rows


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
