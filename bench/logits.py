"""What constraint masks cost, beside the other ways to have them: `python -m bench.logits`.

The ways: `logits_processors`; the same state machine in Python, one object a request, behind vLLM's
AdapterLogitsProcessor; and xgrammar's batch fill with an equivalent grammar. They are timed in turns in the same run,
for all sizes of a batch, each after every step of the same requests, and in another order each time. So each finds the
caches as the others left them, as it would in an engine, whose scheduler and sampler run between two steps.
How much of a time is waiting for memory is seen where it is taken once more, after other data have displaced all that
was in the caches. A figure is the median of the time that passed; in brackets, that of the processors' time. Runs
itself in the engine's environment, where torch, vLLM and xgrammar are. Takes about five minutes. Prints the table in
Markdown, and with `--picture FILE` draws time against batch size. Exit code 1 if a figure is not what is promised.
"""

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

VOCABULARIES = (128_256, 151_936)
SIZES = (10_000, 1_000_000)
BATCHES = (1, 8, 32, 64, 128, 256)
TURNS = 61
LEAST_RATIO = 30
MOST_OVER_FLOOR = 1.5
_UNTIL_ASLEEP = 0.02
"""Seconds after which torch's threads have ceased to wait for more in a loop, and so to take a core from others."""
_DISPLACING = 64 << 20
"""Bytes that, once written, are in the caches instead of all else."""
_FORWARD_PASS = 0.005
"""Seconds in which a device computes the model and the sampler's thread has nothing to do."""
_GRAMMAR_ENTRIES = 1_000
"""As many as xgrammar compiles in seconds; ours is then timed with the same ones."""
_HUGE = 5_000_000
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_FINGERPRINT = b"\0" * 32

Tokens = tuple[int, ...]


class Time(NamedTuple):
    """Microseconds, medians: that passed, and of all threads' processors."""

    passed: float
    used: float

    def show(self) -> str:
        return f"{self.passed:,.0f} ({self.used:,.0f})" if self.passed >= 10 else f"{self.passed:.2f} ({self.used:.2f})"


def compare(one: Time, other: Time) -> str:
    return f"{one.show()} / {other.show()} us = {one.passed / other.passed:.2f} ({one.used / other.used:.2f})"


class Row(NamedTuple):
    """A line of the table."""

    what: str
    value: str
    promised: str
    holds: bool

    def show(self) -> None:
        print(f"| {self.what} | {self.value}{'' if self.holds else ' (missed)'} | {self.promised} |", flush=True)


class Table(list[Row]):
    """Lines that are printed as they come."""

    def append(self, row: Row) -> None:
        if not self:
            print("| | measured | promised |\n|---|---|---|")
        row.show()
        super().append(row)


# Entries: three to seven tokens of which the first ones are shared, as those of ids and titles are.


def make_entries(number: int, vocabulary: int) -> list[Tokens]:
    choose = random.Random(number)
    first = choose.sample(range(3, vocabulary), 3_000)
    entries: set[Tokens] = set()
    while len(entries) < number:
        length = choose.randint(3, 7)
        entries.add((choose.choice(first), *(choose.randrange(3, 3_000) for _ in range(length - 1))))
    return sorted(entries)


END = 2


class Walk:
    """The outputs of a batch, as lists that grow by a token each step. Requests are at different places. A token is a
    new object each time, as those are that an engine takes from its sampler."""

    def __init__(self, entries: list[Tokens], rows: int) -> None:
        choose = random.Random(rows)
        self._ways = [array("I", choose.choice(entries)) for _ in range(rows)]
        self.outputs: list[list[int]] = [list(way[: index % len(way)]) for index, way in enumerate(self._ways)]

    def step(self) -> None:
        """One more token each; whoever had its entry begins again."""
        for way, output in zip(self._ways, self.outputs, strict=True):
            if len(output) == len(way):
                output.clear()
            else:
                output.append(way[len(output)])


class PythonTrie:
    """The catalogue as nested dictionaries. What a node allows is made once where that is long."""

    def __init__(self, entries: list[Tokens]) -> None:
        self.root: dict[int, Any] = {}
        for entry in entries:
            node = self.root
            for token in entry:
                node = node.setdefault(token, {})
            node[END] = {}
        self._kept: dict[int, Any] = {}

    def allowed(self, node: dict[int, Any]) -> Any:
        import torch

        if len(node) < 64:
            return torch.tensor(list(node))
        if id(node) not in self._kept:
            self._kept[id(node)] = torch.tensor(list(node))
        return self._kept[id(node)]


class PythonMachine:
    """One request: follows its output from where it was, and returns the tokens that may come next."""

    def __init__(self, trie: PythonTrie, is_writing: bool) -> None:
        self._trie = trie
        self._is_writing = is_writing
        self._node = trie.root
        self._seen = 0

    def __call__(self, output: list[int], logits: Any) -> Any:
        if len(output) < self._seen:
            self._node, self._seen = self._trie.root, 0
        while self._seen < len(output):
            self._node = self._node[output[self._seen]]
            self._seen += 1
        allowed = self._trie.allowed(self._node)
        if self._is_writing:
            kept = logits[allowed]
            logits.fill_(float("-inf"))
            logits[allowed] = kept
        return logits


def make_adapter(trie: PythonTrie, walk: Walk, is_writing: bool) -> Any:
    """vLLM's adapter, with one of our machines in each row."""
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import AdapterLogitsProcessor, BatchUpdate

    class Adapter(AdapterLogitsProcessor):  # type: ignore[misc]
        def is_argmax_invariant(self) -> bool:
            return False

        def new_req_logits_processor(self, params: Any) -> Any:
            return PythonMachine(trie, is_writing)

    adapter = Adapter(None, None, False)
    added = [(row, SamplingParams(), None, output) for row, output in enumerate(walk.outputs)]
    adapter.update_state(BatchUpdate(batch_size=len(added), removed=[], added=added, moved=[]))
    return adapter


def write_catalog(folder: Path, name: str, entries: list[Tokens], vocabulary: int) -> None:
    from logits_processors._native import CatalogBuilder

    builder = CatalogBuilder(vocabulary, _FINGERPRINT)
    builder.add([list(entry) for entry in entries])
    builder.write(str(folder / f"{name}.catalog"))


def make_batch(folder: Path, name: str, walk: Walk, vocabulary: int, threads: int) -> Any:
    from logits_processors._native import Batch, Constraints

    constraints = Constraints(str(folder), _FINGERPRINT, lambda _: [1])
    batch = Batch(vocabulary, len(walk.outputs), threads)
    for row, output in enumerate(walk.outputs):
        batch.put(row, constraints.make({"catalog": {"name": name}}, [END]), output)
    return batch


def timed(
    step: Callable[[], None],
    *ways: Callable[[], object],
    turns: int = TURNS,
    before: Callable[[], object] = lambda: None,
) -> list[Time]:
    """Each way's time: all of them in each turn, which begins with a step; `before` comes before each way."""
    choose = random.Random(len(ways))
    spent: list[list[Time]] = [[] for _ in ways]
    gc.collect()
    gc.disable()
    for _ in range(turns):
        step()
        for index in choose.sample(range(len(ways)), len(ways)):
            before()
            begin_used, begin = time.process_time(), time.perf_counter()
            ways[index]()
            passed, used = time.perf_counter() - begin, time.process_time() - begin_used
            spent[index].append(Time(passed * 1e6, used * 1e6))
    gc.enable()
    return [medians(times) for times in spent]


def medians(times: Sequence[Time]) -> Time:
    return Time(*(statistics.median(values) for values in zip(*times, strict=True)))


def masks_of(batch: Any) -> Callable[[], object]:
    def compute() -> None:
        batch.read()
        batch.finish()

    return compute


def measure_masks(folder: Path, rows: Table) -> dict[str, list[float]]:
    """Ours against the adapter's, masks only; the times by batch size, for the larger catalogue."""
    import numpy
    import torch

    displacing = numpy.zeros(_DISPLACING, numpy.uint8)
    curves = {}
    for size in SIZES:
        entries = make_entries(size, VOCABULARIES[0])
        trie = PythonTrie(entries)
        # Millions of objects that no collection need look at.
        gc.freeze()
        for vocabulary in VOCABULARIES:
            write_catalog(folder, "entries", entries, vocabulary)
            walks = [Walk(entries, number) for number in BATCHES]
            compute = [masks_of(make_batch(folder, "entries", walk, vocabulary, 2)) for walk in walks]
            adapt = [
                partial(make_adapter(trie, walk, is_writing=False).apply, torch.zeros(number, 8))
                for walk, number in zip(walks, BATCHES, strict=True)
            ]

            def step(walks: list[Walk] = walks) -> None:
                for walk in walks:
                    walk.step()

            # All sizes in the same turns: what disturbs the machine for a while then disturbs all of them.
            times = timed(step, *compute, *adapt)
            ours, adapters = times[: len(BATCHES)], times[len(BATCHES) :]
            name = f"{size:,} entries, vocabulary {vocabulary:,}"
            rows.append(
                Row(
                    f"masks of 256 rows, {name}: adapter / ours",
                    compare(adapters[-1], ours[-1]),
                    f"at least {LEAST_RATIO}",
                    adapters[-1].passed / ours[-1].passed >= LEAST_RATIO,
                )
            )
            one, other = timed(walks[-1].step, compute[-1], adapt[-1], before=lambda: displacing.fill(0))
            rows.append(
                Row(
                    f"the same, after {_DISPLACING >> 20} MB of other data: adapter / ours",
                    compare(other, one),
                    "above 1",
                    other.passed > one.passed,
                )
            )
            few, many = (Time(*(value / BATCHES[at] for value in ours[at])) for at in (BATCHES.index(8), -1))
            rows.append(
                Row(f"a row at 256 / at 8 rows, {name}", compare(many, few), "at most 1", many.passed <= few.passed)
            )
            if (size, vocabulary) == (SIZES[-1], VOCABULARIES[0]):
                curves = {
                    "AdapterLogitsProcessor, Python": [spent.passed for spent in adapters],
                    "logits_processors": [spent.passed for spent in ours],
                }
        gc.unfreeze()
    return curves


def measure_threads(folder: Path, rows: Table) -> None:
    """What the second thread gains: beside a forward pass, and where there is much to compute at once."""
    from logits_processors._native import Batch, Constraints

    entries = make_entries(SIZES[0], VOCABULARIES[0])
    write_catalog(folder, "entries", entries, VOCABULARIES[0])
    walk = Walk(entries, BATCHES[-1])
    batches = [make_batch(folder, "entries", walk, VOCABULARIES[0], threads) for threads in (1, 2)]
    waited: list[list[Time]] = [[], []]
    for turn in range(TURNS):
        walk.step()
        for index in (0, 1) if turn % 2 else (1, 0):
            batch = batches[index]
            begin_used, begin = time.process_time(), time.perf_counter()
            batch.read()
            batch.start()
            begun = time.perf_counter()
            time.sleep(_FORWARD_PASS)
            computed = time.perf_counter()
            batch.read()
            batch.finish()
            passed = begun - begin + time.perf_counter() - computed
            waited[index].append(Time(passed * 1e6, (time.process_time() - begin_used) * 1e6))
    one, two = (medians(times) for times in waited)
    rows.append(
        Row(
            "the sampler's time for the masks of 256 rows, begun before a forward pass: one thread / two",
            compare(one, two),
            "above 1",
            one.passed > two.passed,
        )
    )

    choose = random.Random(1)
    constraints = Constraints(None, _FINGERPRINT, lambda _: [1])
    outputs = [[choose.randrange(3, VOCABULARIES[0]) for _ in range(1_000)] for _ in range(BATCHES[-1])]
    batches = [Batch(VOCABULARIES[0], len(outputs), threads) for threads in (1, 2)]

    def resume() -> None:
        for batch in batches:
            for row, output in enumerate(outputs):
                batch.put(row, constraints.make({"no_repeat_ngram": {"size": 3}}, [END]), output)

    one, two = timed(resume, *(masks_of(batch) for batch in batches), turns=15)
    rows.append(
        Row(
            "256 requests of 1,000 tokens, no_repeat_ngram, come back at once: one thread / two",
            compare(one, two),
            "above 1",
            one.passed > two.passed,
        )
    )


def measure_apply(folder: Path, rows: Table) -> None:
    """The whole apply against the adapter's, and against filling as many bytes."""
    import torch

    for vocabulary in VOCABULARIES:
        entries = make_entries(SIZES[0], vocabulary)
        write_catalog(folder, "entries", entries, vocabulary)
        trie = PythonTrie(entries)
        for number in (8, 256):
            walk = Walk(entries, number)
            batches = [make_batch(folder, "entries", walk, vocabulary, threads) for threads in (1, 2)]
            adapter = make_adapter(trie, walk, is_writing=True)
            logits = torch.zeros(number, vocabulary)

            def apply(batch: Any, logits: Any = logits) -> None:
                batch.read()
                batch.apply(logits.data_ptr(), logits.stride(0), *logits.shape, "float32")

            def adapt(adapter: Any = adapter, logits: Any = logits) -> None:
                adapter.apply(logits)

            def fill(logits: Any = logits) -> None:
                logits.fill_(float("-inf"))

            by_threads = [partial(apply, batch) for batch in batches]
            rounds = []
            # torch's second thread may cost more than it gains: of both rounds, the better time counts for each way.
            for threads in (1, 2):
                torch.set_num_threads(threads)
                pause = partial(time.sleep, _UNTIL_ASLEEP)
                rounds.append(timed(walk.step, *by_threads, adapt, fill, turns=21, before=pause))
            alone, ours, adapted, floor = (min(times) for times in zip(*rounds, strict=True))
            name = f"apply to {number} rows, vocabulary {vocabulary:,}"
            for row in (
                Row(
                    f"{name}: ours / torch's fill_ of the same bytes",
                    compare(ours, floor),
                    f"at most {MOST_OVER_FLOOR}",
                    ours.passed / floor.passed <= MOST_OVER_FLOOR,
                ),
                Row(f"{name}: adapter / ours", compare(adapted, ours), "above 1", adapted.passed > ours.passed),
                Row(f"{name}: one thread / two", compare(alone, ours), "above 1", alone.passed > ours.passed),
            ):
                rows.append(row)


def measure_grammar(folder: Path, model: Path, rows: Table) -> list[float]:
    """Ours against xgrammar's batch fill, of the same entries as a choice; its times by batch size."""
    import xgrammar
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    choose = random.Random(5)
    texts = sorted({"B0" + "".join(choose.choices(_LETTERS, k=8)) for _ in range(_GRAMMAR_ENTRIES)})
    entries = [tuple(encoding.ids) for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    grammar = "root ::= " + " | ".join(json.dumps(text) for text in texts)
    curves = []
    for vocabulary in VOCABULARIES:
        write_catalog(folder, "choice", entries, vocabulary)
        known = [tokenizer.id_to_token(index) or "" for index in range(tokenizer.get_vocab_size())]
        # A larger vocabulary: the tokenizer's own and pairs of its tokens.
        words = [*known, *(choose.choice(known) + choose.choice(known) for _ in range(vocabulary - len(known)))]
        info = xgrammar.TokenizerInfo(words, xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=[END])
        begin = time.perf_counter()
        compiled = xgrammar.GrammarCompiler(info).compile_grammar(grammar)
        compiling = time.perf_counter() - begin
        theirs = []
        for number in BATCHES:
            walk = Walk(entries, number)
            batch = make_batch(folder, "choice", walk, vocabulary, 2)
            grammars = Grammars(walk, compiled)
            filler = xgrammar.BatchGrammarMatcher(max_threads=2)
            bitmask = xgrammar.allocate_token_bitmask(number, vocabulary)
            fill = partial(filler.batch_fill_next_token_bitmask, grammars.matchers, bitmask)
            one, other = timed(grammars.step, masks_of(batch), fill)
            theirs.append(other)
        rows.append(
            Row(
                f"masks of 256 rows, {len(texts):,} entries, vocabulary {vocabulary:,}: xgrammar "
                f"(compiled in {compiling:.1f} s) / ours",
                compare(other, one),
                "above 1",
                other.passed > one.passed,
            )
        )
        curves.append([spent.passed for spent in theirs])
    return curves[0]


class Grammars:
    """xgrammar's state of each output of a walk. Taking a step's tokens is not part of its time; of ours it is."""

    def __init__(self, walk: Walk, compiled: Any) -> None:
        import xgrammar

        self._walk = walk
        self.matchers = [xgrammar.GrammarMatcher(compiled) for _ in walk.outputs]
        for matcher, output in zip(self.matchers, walk.outputs, strict=True):
            for token in output:
                assert matcher.accept_token(token)

    def step(self) -> None:
        self._walk.step()
        for matcher, output in zip(self.matchers, self._walk.outputs, strict=True):
            if output:
                assert matcher.accept_token(output[-1])
            else:
                matcher.reset()


def measure_building(folder: Path, model: Path, rows: Table) -> None:
    from logits_processors._native import Catalog
    from logits_processors.catalogs import build, load_tokenizer

    choose = random.Random(5)
    source, target = folder / "huge.txt", folder / "huge.catalog"
    with source.open("w") as file:
        for _ in range(_HUGE):
            file.write("B0" + "".join(choose.choices(_LETTERS, k=8)) + "\n")
    backend = load_tokenizer(model)
    begin_used, begin = time.process_time(), time.perf_counter()
    built = build(source, backend, target, lambda *_: None)
    spent, used = time.perf_counter() - begin, time.process_time() - begin_used
    (mapping,) = timed(lambda: None, lambda: Catalog(str(target)), turns=3)
    each = built.size / built.entries
    for row in (
        Row(f"{built.entries:,} entries: build, from text", f"{spent:.0f} ({used:.0f}) s", "under 60 s", spent < 60),
        Row(
            f"{built.entries:,} entries: map and check",
            f"{mapping.passed / 1e6:.2f} s",
            "under 1 s",
            mapping.passed < 1e6,
        ),
        Row(f"{built.entries:,} entries: size", f"{each:.1f} bytes an entry", "under 40", each < 40),
    ):
        rows.append(row)


def draw(curves: dict[str, list[float]]) -> str:
    """An SVG with both axes logarithmic: microseconds for a batch against its rows."""
    from math import log10

    left, top, width, height = 70, 20, 460, 300
    highest = max(max(times) for times in curves.values())
    lowest = min(min(times) for times in curves.values())
    decades = range(int(log10(lowest)), int(log10(highest)) + 2)

    def x(rows: int) -> float:
        return left + width * log10(rows) / log10(BATCHES[-1])

    def y(spent: float) -> float:
        return top + height * (decades[-1] - log10(spent)) / (len(decades) - 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 220} {top + height + 50}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for decade in decades:
        at = y(10**decade)
        lines.append(f'<path d="M{left} {at:.1f}h{width}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{10**decade:,} µs</text>')
    for rows in BATCHES:
        lines.append(f'<text x="{x(rows):.1f}" y="{top + height + 20}" text-anchor="middle">{rows}</text>')
    lines.append(f'<text x="{left + width / 2}" y="{top + height + 42}" text-anchor="middle">rows of the batch</text>')
    for colour, (name, times) in zip(("#c2410c", "#1d4ed8", "#047857"), curves.items(), strict=False):
        points = " ".join(f"{x(rows):.1f},{y(spent):.1f}" for rows, spent in zip(BATCHES, times, strict=True))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        lines.append(f'<text x="{left + width + 8}" y="{y(times[-1]) + 4:.1f}" fill="{colour}">{name}</text>')
    return "\n".join([*lines, "</svg>\n"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.logits", description=__doc__.partition("\n")[0])
    parser.add_argument("--picture", type=Path, metavar="FILE", help="where to draw time against batch size, as SVG")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="the model whose tokenizer is used")
    parser.add_argument("--without-building", action="store_true", help="leave out the five million entries")
    arguments = parser.parse_args()
    try:
        import vllm  # noqa: F401
    except ImportError:
        return run_in_engine(arguments)

    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        rows = Table()
        curves = measure_masks(folder, rows)
        measure_threads(folder, rows)
        measure_apply(folder, rows)
        curves[f"xgrammar, {_GRAMMAR_ENTRIES:,} entries"] = measure_grammar(folder, arguments.model, rows)
        if not arguments.without_building:
            measure_building(folder, arguments.model, rows)
    if arguments.picture is not None:
        arguments.picture.write_text(draw(curves), encoding="utf-8")
    return 0 if all(row.holds for row in rows) else 1


def run_in_engine(arguments: argparse.Namespace) -> int:
    """This file again, by the engine's Python, which knows nothing of the checkout."""
    from devtools import environments, models
    from service_base.files import unwritable

    if arguments.picture is not None and (why := unwritable(arguments.picture.resolve().parent)):
        print(f"bench logits: {why}, or give another --picture.", file=sys.stderr)
        return 2
    model = arguments.model or models.smollm2()
    command = [str(environments.engine().python), "-I", str(Path(__file__).resolve()), "--model", str(model)]
    if arguments.picture is not None:
        command += ["--picture", str(arguments.picture.resolve())]
    if arguments.without_building:
        command.append("--without-building")
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(command, cwd=folder, env=os.environ | quiet).returncode


if __name__ == "__main__":
    sys.exit(main())
