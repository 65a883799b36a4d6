"""`python -m bench.parity --gateway URL --vllm URL --model NAME`: asks both servers the same and compares.

Exit code 1 if an answer differs without an explanation, 2 if a server cannot be asked.
"""

import argparse
import sys

from bench.parity.client import Unreachable
from bench.parity.run import Outcome, run


def main() -> int:
    arguments = _parser().parse_args()
    outcomes: list[Outcome] = []
    try:
        for outcome in run(arguments.gateway, arguments.vllm, arguments.model, arguments.vllm_model or arguments.model):
            outcomes.append(outcome)
            print("\n".join(outcome.lines()), flush=True)
    except Unreachable as problem:
        print(f"bench.parity: {problem}", file=sys.stderr)
        return 2
    same = sum(not outcome.found for outcome in outcomes)
    different = sum(bool(outcome.unexplained) for outcome in outcomes)
    explained = len(outcomes) - same - different
    print(f"{len(outcomes)} requests: {same} the same, {explained} explained, {different} DIFFERENT")
    return 1 if different else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.parity",
        description="Sends requests of every shape to the gateway and to vLLM's own server, one in flight, and "
        "compares text, finish reason, usage and log probabilities. Both must serve the same model with the same "
        "engine arguments, prefix caching off; see docs/parity.md.",
    )
    parser.add_argument("--gateway", required=True, metavar="URL", help="the gateway, such as http://127.0.0.1:9000")
    parser.add_argument("--vllm", required=True, metavar="URL", help="vLLM's server, such as http://127.0.0.1:8100")
    parser.add_argument("--model", required=True, metavar="NAME", help="the model's name at the gateway")
    parser.add_argument("--vllm-model", metavar="NAME", help="its name at vLLM's server, where that is another")
    return parser


if __name__ == "__main__":
    sys.exit(main())
