"""What it costs to tokenise a prompt and nothing else: `python -m bench.egress.tokenising FOLDER < PROMPTS`.

Runs in the engine's environment. PROMPTS is a JSON list of texts, FOLDER the tokenizer's; prints CPU microseconds per
prompt on one thread, the median of several passes.
"""

import json
import statistics
import sys
import time

from tokenizers import Tokenizer

_PASSES = 7


def main() -> None:
    tokenizer = Tokenizer.from_file(f"{sys.argv[1]}/tokenizer.json")
    prompts = json.load(sys.stdin)
    times = []
    for _ in range(_PASSES):
        began = time.process_time()
        for prompt in prompts:
            tokenizer.encode(prompt)
        times.append((time.process_time() - began) / len(prompts))
    print(1e6 * statistics.median(times[1:]))


if __name__ == "__main__":
    main()
