"""Masks of single rows, as a reader would work them out; and what a batch refuses."""

import os
from pathlib import Path

import numpy as np
import pytest

from logits_processors._native import Batch, CatalogBuilder, Constraints, only_end

_FINGERPRINT = b"\0" * 32
_VOCABULARY = 40
_END, _COMMA = 39, 38


@pytest.fixture
def constraints(tmp_path: Path) -> Constraints:
    builder = CatalogBuilder(_VOCABULARY, _FINGERPRINT)
    builder.add([[1, 2, 3], [1, 2], [4]])
    builder.write(str(tmp_path / "few.catalog"))
    return Constraints(str(tmp_path), _FINGERPRINT, lambda _: [_COMMA])


def allowed(batch: Batch, row: int = 0) -> set[int]:
    batch.read()
    batch.finish()
    return computed(batch, row)


def computed(batch: Batch, row: int) -> set[int]:
    bits = np.unpackbits(np.frombuffer(batch.mask(row), np.uint8), bitorder="little")
    return {int(token) for token in bits.nonzero()[0]}


def test_one_entry(constraints: Constraints) -> None:
    batch, output = Batch(_VOCABULARY, 1, 1), list[int]()
    batch.put(0, constraints.make({"catalog": {"name": "few"}}, [_END]), output)
    assert allowed(batch) == {1, 4}
    output.append(1)
    assert allowed(batch) == {2}
    output.append(2)
    assert allowed(batch) == {3, _END}
    output.append(3)
    assert allowed(batch) == {_END}
    output.append(_END)
    assert allowed(batch) == {_END}
    assert batch.dead_ends == 0


def test_a_list_never_begins_what_it_could_not_end(constraints: Constraints) -> None:
    batch, output = Batch(_VOCABULARY, 1, 1), [4, _COMMA, 1, 2]
    wanted = {"catalog": {"name": "few", "items": 3, "separator": ","}}
    batch.put(0, constraints.make(wanted, [_END]), output)
    assert allowed(batch) == {3, _COMMA}
    output += [_COMMA]
    # 4 is used, and below 1 2 there is still 1 2 3.
    assert allowed(batch) == {1}
    output += [1, 2]
    assert allowed(batch) == {3}
    output += [3]
    assert allowed(batch) == {_END}


def test_where_nothing_is_allowed_the_end_is_and_it_is_counted(constraints: Constraints) -> None:
    batch = Batch(_VOCABULARY, 1, 1)
    batch.put(0, constraints.make({"catalog": {"name": "few"}}, [_END]), [7])
    assert allowed(batch) == {_END}
    assert batch.dead_ends == 1


@pytest.mark.parametrize(
    ("items", "output"),
    [
        # An entry a second time, another one after the last, a separator without an entry, a way that no entry goes.
        (3, [4, _COMMA, 4]),
        (2, [4, _COMMA, 1, 2, _COMMA]),
        (2, [4, _COMMA, _COMMA]),
        (2, [1, 4]),
    ],
)
def test_after_a_token_that_no_mask_allowed_only_the_end_is(
    constraints: Constraints, items: int, output: list[int]
) -> None:
    batch = Batch(_VOCABULARY, 1, 1)
    wanted = {"catalog": {"name": "few", "items": items, "separator": ","}}
    batch.put(0, constraints.make(wanted, [_END]), output)
    assert allowed(batch) == {_END}
    assert batch.dead_ends == 1


def test_entries_that_the_model_has_no_tokens_for(tmp_path: Path) -> None:
    """Its vocabulary can be smaller than the tokenizer's."""
    builder = CatalogBuilder(1000, _FINGERPRINT)
    builder.add([[token, 7] for token in range(45, 1000)])
    builder.write(str(tmp_path / "large.catalog"))
    constraints = Constraints(str(tmp_path), _FINGERPRINT, lambda _: [])
    batch = Batch(_VOCABULARY, 1, 1)
    batch.put(0, constraints.make({"catalog": {"name": "large"}}, [_END]), [])
    assert allowed(batch) == {_END}
    assert batch.dead_ends == 1


def test_without_an_end_everything_is_allowed_there() -> None:
    batch = Batch(_VOCABULARY, 2, 1)
    batch.put(0, only_end([]), [])
    batch.put(1, only_end([_END]), [])
    assert allowed(batch) == set(range(_VOCABULARY))
    assert allowed(batch, 1) == {_END}


def test_ngrams() -> None:
    batch, output = Batch(_VOCABULARY, 1, 1), [1, 2, 3, 1]
    constraints = Constraints(None, _FINGERPRINT, lambda _: [])
    batch.put(0, constraints.make({"no_repeat_ngram": {"size": 2}}, [_END]), output)
    assert allowed(batch) == set(range(_VOCABULARY)) - {2}
    output[:] = [1, 1]
    assert allowed(batch) == set(range(_VOCABULARY)) - {1}


def test_a_new_request_has_nothing_of_the_one_before_it_in_its_row(constraints: Constraints) -> None:
    batch = Batch(_VOCABULARY, 1, 1)
    batch.put(0, constraints.make({"catalog": {"name": "few"}}, [_END]), [1])
    assert allowed(batch) == {2}
    batch.put(0, constraints.make({"catalog": {"name": "few"}}, [_END]), [])
    batch.finish()
    assert np.frombuffer(batch.mask(0), np.uint32)[0] == (1 << 1) | (1 << 4)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("is_started", [False, True])
def test_every_row_of_a_large_batch(constraints: Constraints, threads: int, is_started: bool) -> None:
    ways = [([], {1, 4}), ([1], {2}), ([1, 2], {3, _END}), ([4], {_END})]
    for rows in (7, 50, 101):
        batch = Batch(_VOCABULARY, rows, threads)
        for row in range(rows):
            batch.put(row, constraints.make({"catalog": {"name": "few"}}, [_END]), ways[row % 4][0])
        batch.read()
        if is_started:
            batch.start()
        batch.finish()
        for row in range(rows):
            assert computed(batch, row) == ways[row % 4][1]


def test_a_placeholder_is_no_token_yet() -> None:
    batch, output = Batch(_VOCABULARY, 1, 1), [1, -1]
    constraints = Constraints(None, _FINGERPRINT, lambda _: [])
    batch.put(0, constraints.make({"no_repeat_ngram": {"size": 1}}, [_END]), output)
    assert not batch.read()
    output[1] = 5
    assert batch.read()
    assert allowed(batch) == set(range(_VOCABULARY)) - {1, 5}


@pytest.mark.parametrize("length", [3, 200])
@pytest.mark.parametrize("place", [0, 2, -70, -1])
def test_a_token_that_has_become_another(length: int, place: int) -> None:
    """Far back it is not looked for, but where it is found all before it is looked at too."""
    batch, output = Batch(1000, 1, 1), list(range(300, 300 + length))
    constraints = Constraints(None, _FINGERPRINT, lambda _: [])
    batch.put(0, constraints.make({"no_repeat_ngram": {"size": 1}}, [_END]), output)
    assert allowed(batch) == set(range(1000)) - set(output)
    output[place % length] = 7
    output[-1] = 8
    assert allowed(batch) == set(range(1000)) - set(output)


def test_a_list_with_other_objects_for_the_same_tokens() -> None:
    batch, output = Batch(1000, 1, 1), [300 + token for token in range(20)]
    constraints = Constraints(None, _FINGERPRINT, lambda _: [])
    batch.put(0, constraints.make({"no_repeat_ngram": {"size": 1}}, [_END]), output)
    assert allowed(batch) == set(range(1000)) - set(output)
    for added in (400, 401):
        output[:] = [int(str(token)) for token in output] + [added]
        assert allowed(batch) == set(range(1000)) - set(output)


@pytest.mark.parametrize("length", [1, 4, 6, 7, 30])
@pytest.mark.parametrize("kept", [0, 1, 3, 6, 29])
@pytest.mark.parametrize("added", [0, 1, 3, 40])
def test_a_list_that_shrinks_and_grows_between_two_looks(length: int, kept: int, added: int) -> None:
    batch, output = Batch(1000, 1, 1), [300 + token for token in range(length)]
    constraints = Constraints(None, _FINGERPRINT, lambda _: [])
    batch.put(0, constraints.make({"no_repeat_ngram": {"size": 1}}, [_END]), output)
    assert allowed(batch) == set(range(1000)) - set(output)
    output[kept:] = [500 + token for token in range(added)]
    assert allowed(batch) == set(range(1000)) - set(output)
    output.append(900)
    assert allowed(batch) == set(range(1000)) - set(output)


def test_the_other_threads_leave_the_callers_processor_to_it(constraints: Constraints) -> None:
    processors = os.sched_getaffinity(0)
    own = min(processors)
    os.sched_setaffinity(0, {own})
    try:
        batch = Batch(_VOCABULARY, 1, 3)
        batch.put(0, constraints.make({"catalog": {"name": "few"}}, [_END]), [])
        logits = np.zeros((1, _VOCABULARY), np.float32)
        batch.apply(logits.ctypes.data, _VOCABULARY, 1, _VOCABULARY, "float32")
        threads = [int(task.name) for task in Path("/proc/self/task").iterdir() if _name(task) == "constraints"]
        assert len(threads) == 2
        for thread in threads:
            # Where there is no other processor they share it.
            assert os.sched_getaffinity(thread) == (processors - {own} or processors)
    finally:
        os.sched_setaffinity(0, processors)


def _name(task: Path) -> str:
    return (task / "comm").read_text().strip()


def test_the_memory_that_a_device_gets(constraints: Constraints) -> None:
    """First the row of each mask, or -1, then the masks, whatever they are."""
    capacity = 3
    words = Batch.memory_words(_VOCABULARY, capacity)
    memory = np.zeros(words + 16, np.int32)
    aligned = memory[-memory.ctypes.data // 4 % 16 :][:words]
    batch = Batch(_VOCABULARY, capacity, 1, aligned.ctypes.data)
    for row, output in ((4, []), (1, [1]), (2, [1, 2])):
        batch.put(row, constraints.make({"catalog": {"name": "few"}}, [_END]), output)
    batch.remove(1)
    batch.move(2, 0)
    batch.read()
    batch.finish()
    assert batch.used_places == 3
    assert aligned[:3].tolist() == [4, -1, 0]
    for place, row in ((0, 4), (2, 0)):
        begin = batch.masks_begin + place * batch.stride
        mask = batch.mask(row)
        assert aligned[begin : begin + len(mask) // 4].tobytes() == mask
        assert begin + len(mask) // 4 <= batch.used_words
    batch.remove(0)
    assert batch.used_places == 1


def test_a_shared_mask_reaches_a_device_too(tmp_path: Path) -> None:
    """That of a root with many children is not copied into the row's own words, unless those are read elsewhere."""
    vocabulary, tokens = 200, list(range(3, 120))
    builder = CatalogBuilder(vocabulary, _FINGERPRINT)
    builder.add([[token, 150] for token in tokens])
    builder.write(str(tmp_path / "many.catalog"))
    constraints = Constraints(str(tmp_path), _FINGERPRINT, lambda _: [])
    words = Batch.memory_words(vocabulary, 1)
    memory = np.zeros(words + 16, np.int32)
    aligned = memory[-memory.ctypes.data // 4 % 16 :][:words]
    batch, output = Batch(vocabulary, 1, 1, aligned.ctypes.data), list[int]()
    batch.put(0, constraints.make({"catalog": {"name": "many"}}, [199]), output)
    for output[:], wanted in (([], tokens), ([5], [150]), ([], tokens)):
        assert allowed(batch) == set(wanted)
        bits = np.unpackbits(aligned[batch.masks_begin :].view(np.uint8), bitorder="little")
        assert bits.nonzero()[0].tolist() == wanted


@pytest.mark.parametrize(("element", "bits", "infinity"), [("float32", 32, 0xFF800000), ("bfloat16", 16, 0xFF80)])
def test_logits_that_are_larger_than_the_caches(
    constraints: Constraints, element: str, bits: int, infinity: int
) -> None:
    rows, columns = 2 * 32 // bits, 9_000_001
    batch = Batch(columns, rows, 2)
    for row in range(rows):
        batch.put(row, constraints.make({"catalog": {"name": "few"}}, [_END]), [1, 2] if row else [])
    logits = np.full((rows, columns), 7, f"uint{bits}")
    batch.read()
    batch.apply(logits.ctypes.data, columns, rows, columns, element)
    for row in range(rows):
        assert (logits[row] == 7).nonzero()[0].tolist() == ([3, _END] if row else [1, 4])
    assert (logits == infinity).sum() == rows * (columns - 2)


def test_a_row_that_moves_to_where_it_is_stays(constraints: Constraints) -> None:
    batch = Batch(_VOCABULARY, 1, 1)
    batch.put(0, constraints.make({"catalog": {"name": "few"}}, [_END]), [1])
    batch.move(0, 0)
    assert allowed(batch) == {2}
    batch.swap(0, 0)
    assert allowed(batch) == {2}


def test_what_a_batch_refuses() -> None:
    batch = Batch(_VOCABULARY, 1, 1)
    batch.put(0, only_end([_END]), [])
    with pytest.raises(ValueError, match="more constrained rows than the batch has room for"):
        batch.put(1, only_end([_END]), [])
    logits = np.zeros((2, _VOCABULARY), np.float32)
    with pytest.raises(ValueError, match="another vocabulary"):
        batch.apply(logits.ctypes.data, _VOCABULARY, 2, _VOCABULARY - 1, "float32")
    with pytest.raises(ValueError, match="fewer rows"):
        batch.apply(logits.ctypes.data, _VOCABULARY, 0, _VOCABULARY, "float32")
    with pytest.raises(ValueError, match="must be float32, bfloat16 or float16"):
        batch.apply(logits.ctypes.data, _VOCABULARY, 2, _VOCABULARY, "int32")
    assert not logits.any()
