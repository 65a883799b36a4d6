"""A Triton model that hosts vLLM in the usual way, for comparison: `AsyncLLM.generate` for each request on one event
loop, and for each of its outputs one response of four tensors, with a look at whether the client is still there.

Loaded by Triton in the place of `vllm_backend`; written for this benchmark alone: it takes `text_input` and
`sampling_parameters`, and always streams.
"""

import asyncio
import json
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        path = Path(args["model_repository"]) / args["model_version"] / "model.json"
        arguments = AsyncEngineArgs(**json.loads(path.read_text()))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

        async def start() -> Any:
            return AsyncLLM.from_engine_args(arguments)

        self._llm = asyncio.run_coroutine_threadsafe(start(), self._loop).result()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            asyncio.run_coroutine_threadsafe(self._answer(request), self._loop)

    def finalize(self) -> None:
        self._llm.shutdown()

    async def _answer(self, request: Any) -> None:
        from vllm import SamplingParams

        sender = request.get_response_sender()
        try:
            prompt, parameters = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0].decode()
                for name in ("text_input", "sampling_parameters")
            )
            seen_text = seen_tokens = 0
            async for output in self._llm.generate(prompt, SamplingParams(**json.loads(parameters)), uuid.uuid4().hex):
                if sender.is_cancelled():
                    break
                (completion,) = output.outputs
                sender.send(
                    pb_utils.InferenceResponse(
                        [
                            _text("text_output", completion.text[seen_text:]),
                            _text("finish_reason", str(completion.finish_reason)),
                            _count("num_input_tokens", len(output.prompt_token_ids)),
                            _count("num_output_tokens", len(completion.token_ids) - seen_tokens),
                        ]
                    )
                )
                seen_text, seen_tokens = len(completion.text), len(completion.token_ids)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except Exception as error:
            answer = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
            sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _text(name: str, text: str) -> Any:
    return pb_utils.Tensor(name, np.array([text.encode()], dtype=np.object_))


def _count(name: str, number: int) -> Any:
    return pb_utils.Tensor(name, np.array([number], dtype=np.uint32))
