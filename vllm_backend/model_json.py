"""A deployment's `model.json`: vLLM's engine arguments as a JSON object. Read without vLLM, so that a slip is told at
once."""

import json
from pathlib import Path
from typing import Any

from vllm_backend.contract import StartError


def read_model_json(path: Path) -> dict[str, Any]:
    """The engine arguments, of which `model` is known to be given and, if it is a folder, to exist. Raises
    StartError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StartError(f"{path} is missing: it holds vLLM's engine arguments as a JSON object.") from None
    except ValueError as error:
        raise StartError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(values, dict):
        raise StartError(f"{path} must hold a JSON object of vLLM's engine arguments.")
    model = values.get("model")
    if not isinstance(model, str) or not model:
        raise StartError(f'{path} must name the model: "model" is a folder, or a name on the Hugging Face Hub.')
    if model.startswith(("/", "./", "../")) and not Path(model).is_dir():
        raise StartError(f"{path}: the model folder {model} does not exist.")
    return values
