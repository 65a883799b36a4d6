"""The engine's custom logits processors, as far as the backend has to do with them: made ready before requests are
validated, and asked which arguments of `extra_args` they read.

Both are by duck typing, for classes that `model.json` names under `logits_processors`: a class method
`configure(vllm_config)`, and a class attribute `arguments`, the names that it reads.
"""

import importlib
from collections.abc import Iterable
from typing import Any

from vllm_backend.contract import StartError

CONSTRAINTS = "constraints"
"""The argument of `extra_args` that must not be ignored: its client relies on the form of the answer."""


def configure(vllm_config: Any) -> frozenset[str]:
    """Prepares the engine's logits processors for requests; the names in `extra_args` that they say they read.

    vLLM gives `validate_params` a request and nothing else, so that a processor with settings must be told them before.
    Raises StartError with one sentence.
    """
    named: Iterable[str] = vllm_config.model_config.logits_processors or ()
    arguments: set[str] = set()
    for name in named:
        processor = _load(name)
        try:
            if (prepare := getattr(processor, "configure", None)) is not None:
                prepare(vllm_config)
        except ValueError as error:
            raise StartError(f"model.json: {error}") from error
        arguments.update(getattr(processor, "arguments", ()))
    return frozenset(arguments)


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for step in attribute.split("."):
            found = getattr(found, step)
    except (ImportError, AttributeError, ValueError) as error:
        raise StartError(f"model.json: logits_processors: {name} cannot be loaded: {error}.") from error
    return found
