"""A program for the engine's Python: vLLM on the CPU in this process, with so few KV blocks and such small chunks that
requests are preempted and their prompts computed in parts. `MODEL_FOLDER WORK_FOLDER`.

The last line that it prints is JSON: what each request asked for, its output, and how often a request was preempted.
"""

import json
import os
import random
import sys
from pathlib import Path

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}

from vllm import LLM, SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler

from logits_processors.catalogs import build, load_tokenizer

ENTRIES = 300
_REQUESTS = 24


def make_entries() -> list[str]:
    choose = random.Random(3)
    words = ["garden", "river", "two", "house", "of", "light", "a", "small", "stone", "über", "世界", "7"]
    entries = {" ".join(choose.choices(words, k=choose.randint(1, 5))) for _ in range(2 * ENTRIES)}
    return sorted(entries)[:ENTRIES]


def constraint(number: int) -> dict[str, object] | None:
    kinds: list[dict[str, object] | None] = [
        None,
        {"catalog": {"name": "things"}},
        {"catalog": {"name": "things", "items": 20 + number, "separator": "\n"}},
        {"no_repeat_ngram": {"size": 2}},
    ]
    return kinds[number % len(kinds)]


def parameters(number: int) -> SamplingParams:
    wanted = constraint(number)
    is_catalog = wanted is not None and "catalog" in wanted
    return SamplingParams(
        max_tokens=330 if is_catalog else 120,
        ignore_eos=not is_catalog,
        temperature=0.0 if number % 3 == 0 else 1.5,
        extra_args=None if wanted is None else {"constraints": wanted},
    )


def main(model: Path, work: Path) -> None:
    source = work / "things.txt"
    source.write_text("\n".join(make_entries()))
    build(source, load_tokenizer(model), work / "things.catalog", lambda *_: None)

    preempted = 0
    preempt = Scheduler._preempt_request

    def counted(self: Scheduler, *arguments: object, **named: object) -> object:
        nonlocal preempted
        preempted += 1
        return preempt(self, *arguments, **named)

    Scheduler._preempt_request = counted
    llm = LLM(
        str(model),
        dtype="float32",
        enforce_eager=True,
        distributed_executor_backend="uni",
        block_size=32,
        num_gpu_blocks_override=20,
        max_model_len=512,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=64 << 20,
        logits_processors=["logits_processors:ConstraintProcessor"],
        additional_config={"constraints": {"catalogs": str(work), "threads": 2}},
    )
    from logits_processors import ConstraintProcessor

    ConstraintProcessor.configure(llm.llm_engine.vllm_config)
    numbers = range(_REQUESTS)
    prompts = [{"prompt_token_ids": [30 + (number + index) % 50 for index in range(90 + number)]} for number in numbers]
    outputs = llm.generate(prompts, [parameters(number) for number in numbers], use_tqdm=False)
    answers = [
        {
            "constraints": constraint(number),
            "text": output.outputs[0].text,
            "token_ids": list(output.outputs[0].token_ids),
            "finish_reason": output.outputs[0].finish_reason,
        }
        for number, output in enumerate(outputs)
    ]
    print(json.dumps({"preempted": preempted, "entries": make_entries(), "answers": answers}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
