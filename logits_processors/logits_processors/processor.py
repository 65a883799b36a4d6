"""The class that vLLM loads: all that imports vLLM. Written for the V1 model runner of vLLM 0.32."""

import logging
from typing import Any, ClassVar

import torch
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as V2LogitsProcessor

from logits_processors._native import Batch, Machine, only_end
from logits_processors.requests import PLACE, Requests, constraints_of
from logits_processors.rows import update_rows
from logits_processors.settings import Settings

logger = logging.getLogger("vllm.logits_processors")

_V2 = (
    "ConstraintProcessor works with vLLM's V1 model runner only; set VLLM_USE_V2_MODEL_RUNNER=0 in the environment of "
    "the engine."
)


class ConstraintProcessor(LogitsProcessor):  # type: ignore[misc]
    """Masks the rows of requests whose `extra_args` hold `constraints`.

    Where requests are admitted, `configure` has to be called once, before the first: `validate_params` is given the
    request and nothing else, and could not know the model's catalogues.
    """

    arguments: ClassVar[frozenset[str]] = frozenset({"constraints"})
    """What it reads in `extra_args`: vLLM ignores what no processor reads, so that a server may want to know."""

    _admission: ClassVar[Requests | None] = None

    @classmethod
    def configure(cls, vllm_config: Any) -> None:
        """Makes `validate_params` know the engine. Raises ValueError with one sentence if its settings are wrong."""
        cls._admission = _requests(vllm_config)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raises ValueError, whose text begins with the path of the wrong argument."""
        if constraints_of(sampling_params) is None:
            return
        if cls._admission is None:
            raise ValueError(f"{PLACE}: this server does not call ConstraintProcessor.configure, which they need.")
        cls._admission.check(sampling_params)

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool = False) -> None:
        settings = Settings.read(vllm_config.additional_config)
        self._requests = _requests(vllm_config)
        vocabulary = vllm_config.model_config.get_vocab_size()
        capacity = vllm_config.scheduler_config.max_num_seqs
        self._cuda = None
        if torch.device(device).type == "cuda":
            from logits_processors.cuda import CudaMasks

            self._cuda = CudaMasks(vocabulary, capacity, settings.threads, device)
            self._batch = self._cuda.batch
        else:
            self._batch = Batch(vocabulary, capacity, settings.threads)
        self._reported_dead_ends = 0

    def is_argmax_invariant(self) -> bool:
        """A mask changes what greedy sampling chooses."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follows the batch. Where all tokens are known, the masks are begun: they overlap with the forward pass."""
        if batch_update is not None:
            update_rows(self._batch, batch_update, self._machine)
        if self._batch.constrained and self._batch.read() and (self._cuda is None or self._cuda.is_memory_free()):
            self._batch.start()

    def apply(self, logits: Any) -> Any:
        """Writes minus infinity where a row's mask forbids a token; in place."""
        if not self._batch.constrained:
            return logits
        # Under asynchronous scheduling the last token was not known in update_state.
        self._batch.read()
        if self._cuda is not None:
            self._cuda.apply(logits)
        else:
            rows, columns = logits.shape
            element = str(logits.dtype).removeprefix("torch.")
            self._batch.apply(logits.data_ptr(), logits.stride(0), rows, columns, element)
        self._report_dead_ends()
        return logits

    def _machine(self, params: Any) -> Machine | None:
        try:
            return self._requests.machine(params)
        except ValueError as error:
            # It was admitted, and something has gone since. An answer without its constraint would be worse than none.
            logger.error("A constrained request can only end now: %s", error)
            return only_end(self._requests.ends_of(params))

    def _report_dead_ends(self) -> None:
        # Ever more rarely: a client could cause many.
        if (number := self._batch.dead_ends) >= max(1, 2 * self._reported_dead_ends):
            logger.warning("Constraints left nothing but the end token %d times so far.", number)
            self._reported_dead_ends = number


# Its loader asks for such a class; ours then says in the constructor, in one sentence, what to do.
V2LogitsProcessor.register(ConstraintProcessor)


def _requests(vllm_config: Any) -> Requests:
    if vllm_config.use_v2_model_runner:
        raise ValueError(_V2)
    model = vllm_config.model_config
    tokenizer = cached_tokenizer_from_config(model)
    ends = set() if tokenizer is None or tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
    configured = model.try_get_generation_config().get("eos_token_id")
    ends.update([configured] if isinstance(configured, int) else configured or ())
    return Requests(Settings.read(vllm_config.additional_config), tokenizer, ends)
