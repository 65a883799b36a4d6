"""What Triton loads in the backend's place: the backend itself, with the synthetic engine behind it."""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from bench.synthetic.engine import Engine as SyntheticEngine
from vllm_backend.model import TritonPythonModel as Backend

if TYPE_CHECKING:
    from vllm_backend.engine import Engine


class TritonPythonModel(Backend):
    def _start_engine(self, values: dict[str, Any]) -> "Coroutine[Any, Any, Engine]":
        return cast("Coroutine[Any, Any, Engine]", SyntheticEngine.start(values))
