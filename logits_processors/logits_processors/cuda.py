"""Masks on a CUDA device: pinned memory that the native batch writes, one copy of it, and one kernel.

Imports torch and Triton (the language), which are there wherever vLLM runs on a GPU; no compiler is needed.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from logits_processors._native import Batch

_COLUMNS = 4096
"""Of the logits, for one program of the kernel."""


@triton.jit  # type: ignore[untyped-decorator]
def _write_masks(logits, row_stride, columns, memory, masks_begin, mask_stride, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0)
    row = tl.load(memory + place)
    if row >= 0:
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        is_column = column < columns
        word = tl.load(memory + masks_begin + place * mask_stride + column // 32, mask=is_column, other=-1)
        is_forbidden = ((word >> (column % 32)) & 1) == 0
        tl.store(logits + row.to(tl.int64) * row_stride + column, float("-inf"), mask=is_column & is_forbidden)


class CudaMasks:
    """Brings the masks of a batch to the logits of one device."""

    def __init__(self, vocabulary: int, capacity: int, threads: int, device: Any) -> None:
        words = Batch.memory_words(vocabulary, capacity)
        self._pinned = torch.zeros(words, dtype=torch.int32, pin_memory=True)
        self._on_device = torch.empty(words, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event()
        self.batch = Batch(vocabulary, capacity, threads, self._pinned.data_ptr())

    def is_memory_free(self) -> bool:
        """Whether the last copy is over, so that the masks may be written again."""
        return bool(self._copied.query())

    def apply(self, logits: Any) -> None:
        """Writes the masks into `logits`, of shape (rows, vocabulary); `batch.read()` was called."""
        # Over by now in most cases: the tokens that make new masks were sampled after it.
        self._copied.synchronize()
        self.batch.finish()
        words = self.batch.used_words
        self._on_device[:words].copy_(self._pinned[:words], non_blocking=True)
        self._copied.record()
        columns = logits.shape[1]
        _write_masks[(self.batch.used_places, triton.cdiv(columns, _COLUMNS))](
            logits,
            logits.stride(0),
            columns,
            self._on_device,
            self.batch.masks_begin,
            self.batch.stride,
            COLUMNS=_COLUMNS,
        )
