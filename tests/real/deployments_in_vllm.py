"""Run in the engine's environment: `python deployments_in_vllm.py`, a JSON object on standard input, one on standard
output.

For each deployment, by name: its engine arguments, of which `model` is a folder with the model's configuration, become
vLLM's own classes, as far as `VllmConfig`. The answer holds, by name, the error's text, or null."""

import json
import sys
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext


def error_of(arguments: dict[str, Any]) -> str | None:
    """What vLLM has against these arguments."""
    try:
        AsyncEngineArgs(**arguments).create_engine_config(UsageContext.ENGINE_CONTEXT)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    found = {name: error_of(arguments) for name, arguments in json.load(sys.stdin).items()}
    print("\n" + json.dumps(found))
