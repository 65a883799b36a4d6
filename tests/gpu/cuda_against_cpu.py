"""Run by check.sh: the same requests in a batch on a CUDA device and in one on the CPU; every logit must be the same.

Then the times. Exit code 1, and the first difference, if there is one.
"""

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from logits_processors._native import Batch, CatalogBuilder, Constraints, Machine
from logits_processors.cuda import CudaMasks

_FINGERPRINT = b"\0" * 32
_END = 2
_BATCHES = (8, 64, 256)
_VOCABULARIES = (128_256, 151_936)
_INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def make_constraints(folder: Path, vocabulary: int, choose: random.Random) -> Constraints:
    """Of one catalogue, `items`, with entries of one to six tokens, many of which begin alike."""
    builder = CatalogBuilder(vocabulary, _FINGERPRINT)
    tokens = [choose.randrange(3, vocabulary) for _ in range(500)]
    builder.add([[choose.choice(tokens) for _ in range(choose.randint(1, 6))] for _ in range(20_000)])
    builder.write(str(folder / "items.catalog"))
    return Constraints(str(folder), _FINGERPRINT, lambda _: [1])


def request(choose: random.Random) -> dict[str, Any] | None:
    return choose.choice(
        [
            None,
            {"catalog": {"name": "items"}},
            {"catalog": {"name": "items", "items": 3, "separator": ","}},
            {"no_repeat_ngram": {"size": choose.randint(1, 3)}},
        ]
    )


def make_logits(rows: int, columns: int, padding: int, dtype: torch.dtype) -> torch.Tensor:
    """On the CPU, in memory whose rows are `padding` elements longer."""
    return torch.randn(rows, columns + padding, device="cuda").to(dtype).cpu()[:, :columns]


class Pair:
    """Both batches, with the same requests in the same rows."""

    def __init__(self, rows: int, vocabulary: int, constraints: Constraints) -> None:
        self.cuda = CudaMasks(vocabulary, rows, 2, "cuda")
        self.cpu = Batch(vocabulary, rows, 2)
        self._constraints = constraints

    def put(self, row: int, wanted: dict[str, Any] | None, output: list[int]) -> None:
        for batch in (self.cuda.batch, self.cpu):
            machine: Machine | None = self._constraints.make(wanted, [_END]) if wanted else None
            batch.put(row, machine, output)

    def compare(self, logits: torch.Tensor, padding: int) -> str | None:
        """Masks a copy of the logits on each side; what differs, as text."""
        rows, columns = logits.shape
        wide = torch.empty(rows, columns + padding, dtype=logits.dtype, device="cuda")
        there = wide[:, :columns]
        there.copy_(logits)
        self.cuda.batch.read()
        self.cuda.apply(there)
        self.cpu.read()
        self.cpu.apply(logits.data_ptr(), logits.stride(0), rows, columns, str(logits.dtype).removeprefix("torch."))
        bits = _INTEGERS[logits.dtype]
        differs = there.cpu().view(bits) != logits.contiguous().view(bits)
        if differs.any():
            row, column = differs.nonzero()[0].tolist()
            on_device, on_cpu = there[row, column].item(), logits[row, column].item()
            return f"row {row}, column {column}: {on_device} on the device, {on_cpu} on the CPU"
        return None


def check(rows: int, vocabulary: int, dtype: torch.dtype, padding: int, folder: Path) -> None:
    choose = random.Random(rows * vocabulary + padding)
    pair = Pair(rows, vocabulary, make_constraints(folder, vocabulary, choose))
    outputs: list[list[int]] = [[] for _ in range(rows)]
    for row in range(rows):
        pair.put(row, request(choose), outputs[row])
    for step in range(8):
        logits = make_logits(rows, vocabulary, padding, dtype)
        if (problem := pair.compare(logits, padding)) is not None:
            sys.exit(f"{rows} rows, {vocabulary} tokens, {dtype}, padding {padding}, step {step}: {problem}")
        for row, token in enumerate(logits.argmax(dim=1).tolist()):
            outputs[row].append(token)
        # A request ends, another comes, one moves.
        gone, new, moved = choose.randrange(rows), choose.randrange(rows), choose.randrange(rows)
        outputs[new] = []
        pair.put(new, request(choose), outputs[new])
        if gone != moved:
            outputs[gone] = outputs[moved]
            outputs[moved] = []
            for batch in (pair.cuda.batch, pair.cpu):
                batch.move(moved, gone)


def timed(action: Any, repetitions: int = 50) -> tuple[float, float]:
    """Medians in microseconds: until the call returns, and until the device has done it."""
    returned, done = [], []
    for _ in range(repetitions):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        action()
        returned.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
        done.append(time.perf_counter() - begin)
    return statistics.median(returned) * 1e6, statistics.median(done) * 1e6


def show_times(folder: Path) -> None:
    print("| vocabulary | rows | masks and apply, call returns (us) | done (us) | writing every logit (us) |")
    print("|---|---|---|---|---|")
    for vocabulary in _VOCABULARIES:
        constraints = make_constraints(folder, vocabulary, random.Random(vocabulary))
        for rows in _BATCHES:
            masks = CudaMasks(vocabulary, rows, 2, "cuda")
            outputs: list[list[int]] = [[] for _ in range(rows)]
            for row in range(rows):
                masks.batch.put(row, constraints.make({"catalog": {"name": "items"}}, [_END]), outputs[row])
            logits = torch.randn(rows, vocabulary, device="cuda")
            is_odd = False

            def step(masks: CudaMasks = masks, outputs: list[list[int]] = outputs, logits: Any = logits) -> None:
                nonlocal is_odd
                is_odd = not is_odd
                for output in outputs:
                    # Every mask is another one than before.
                    output[:] = [3] if is_odd else []
                masks.batch.read()
                masks.apply(logits)

            step()
            returned, done = timed(step)
            _, floor = timed(lambda logits=logits: logits.fill_(float("-inf")))
            print(f"| {vocabulary:,} | {rows} | {returned:.0f} | {done:.0f} | {floor:.0f} |", flush=True)


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    compared = 0
    with tempfile.TemporaryDirectory() as folder:
        for vocabulary in (1_000, *_VOCABULARIES):
            for rows in (1, *_BATCHES):
                for dtype in _INTEGERS:
                    for padding in (0, 3, 64):
                        if rows == max(_BATCHES) and padding != 3:
                            continue
                        check(rows, vocabulary, dtype, padding, Path(folder))
                        compared += 8
        print(f"{compared} batches are the same on the device and on the CPU.", flush=True)
        show_times(Path(folder))


if __name__ == "__main__":
    main()
