"""Checksums, the safetensors header and index, the journal, what is removed to make room."""

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefetch import safetensors
from prefetch.checksums import ALGORITHMS, expected
from prefetch.journal import replay
from prefetch.plan import part_bounds
from prefetch.pull import Engine, EngineConfig
from prefetch.space import Candidate, Policy, Usage, fits, to_remove


@given(st.binary(max_size=300), st.integers(1, 64))
def test_combined_parts_are_the_whole(data: bytes, part: int) -> None:
    bounds = part_bounds(len(data), part)
    assert b"".join(data[begin:end] for begin, end in bounds) == data
    for algorithm in ALGORITHMS.values():
        parts = [(algorithm.update(data[begin:end], 0), end - begin) for begin, end in bounds]
        assert algorithm.joined(parts) == algorithm.update(data, 0)


def test_checksums_as_s3_writes_them() -> None:
    """The check values of "123456789": zlib for CRC32, the catalogue of CRC algorithms for the others."""
    said = {name: algorithm.update(b"123456789", 0) for name, algorithm in ALGORITHMS.items()}
    assert said == {"CRC32": zlib.crc32(b"123456789"), "CRC32C": 0xE3069283, "CRC64NVME": 0xAE8B14860A799888}
    assert ALGORITHMS["CRC64NVME"].text(1) == base64.b64encode(bytes(7) + b"\x01").decode()


def test_a_composite_checksum_says_nothing_of_the_whole() -> None:
    assert expected({"ChecksumCRC32": "Tnpjyg==-3", "ChecksumType": "COMPOSITE"}) is None
    assert expected({"ChecksumCRC32": "Tnpjyg==-3"}) is None
    assert expected({"ChecksumSHA256": "x"}) is None
    both = expected({"ChecksumCRC32": "jbQcGg==", "ChecksumCRC64NVME": "DTIPwAL3VC0=", "ChecksumType": "FULL_OBJECT"})
    assert both
    assert (both.algorithm.name, both.value) == ("CRC64NVME", "DTIPwAL3VC0=")


def _tensors(header: Any, data: bytes) -> set[str]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    whole = struct.pack("<Q", len(text)) + text + data
    return safetensors.tensors(len(whole), lambda offset, length: whole[offset : offset + length])


def _tensor(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data", "problem"),
    [
        ({"a": _tensor("F32", [2], 0, 8)}, b"1234567", "cover 8 bytes and the file has 7 of them: it is incomplete"),
        ({"a": _tensor("F32", [2], 0, 8)}, b"123456789", "cover 8 bytes and the file has 9"),
        ({"a": _tensor("F32", [2], 0, 7)}, b"1234567", "has 7 bytes, not those of F32"),
        ({"a": _tensor("U8", [2], 0, 2), "b": _tensor("U8", [2], 1, 3)}, b"123", "leave a gap or overlap"),
        ({"a": _tensor("U8", [2], 1, 3)}, b"123", "leave a gap or overlap"),
        ({"a": _tensor("U8", [-2], 0, 2)}, b"12", "lacks a right dtype, shape or place"),
        ({"a": _tensor("U8", ["2"], 0, 2)}, b"12", "lacks a right dtype, shape or place"),
        ({"a": {"dtype": "U8"}}, b"", "lacks a right dtype, shape or place"),
        ({"a": 1}, b"", "lacks a right dtype, shape or place"),
        ([1], b"", "is not a JSON object"),
        (b"{", b"", "is not valid JSON"),
        (b"[" * 200_000, b"", "nested too deeply|not valid JSON"),
        (b'{"a": 1, "a": 2}', b"", "a name stands twice"),
        (b'{"a": NaN}', b"", "is not valid JSON: NaN is no JSON"),
    ],
)
def test_a_header_that_is_wrong(header: Any, data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        _tensors(header, data)


def test_a_header_that_is_no_header() -> None:
    for size, content in ((7, b"1234567"), (8, b"\xff" * 8), (20, struct.pack("<Q", 13) + b"{" * 12)):
        with pytest.raises(ValueError, match=r"too few|would have|ends beyond"):
            safetensors.tensors(size, lambda offset, length, content=content: content[offset : offset + length])  # type: ignore[misc]


def test_headers_that_are_right() -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "scalar": _tensor("F32", [], 4, 8),
        "none": _tensor("F32", [0, 7], 8, 8),
        "half": _tensor("F4", [4], 8, 10),
        "first": _tensor("BF16", [2], 0, 4),
        "new": _tensor("Q3_FUTURE", [3], 10, 17),
    }
    assert _tensors(header, b"x" * 17) == set(header) - {"__metadata__"}


def test_an_index() -> None:
    index = {"weight_map": {"a": "1.st", "b": "1.st", "c": "2.st"}}
    assert safetensors.missing_files(index, {"1.st": None, "2.st": None, "other": None}) == []
    assert safetensors.missing_files(index, {"1.st": {"a"}}) == ["2.st", "tensor b in 1.st"]
    wrong: Any
    for wrong in ({}, [], None, {"weight_map": []}, {"weight_map": {"a": 1}}):
        with pytest.raises(ValueError, match="no weight_map"):
            safetensors.missing_files(wrong, {})


_BEGIN = {"begin": "w", "size": 9, "etag": "e", "version": None, "part_size": 3, "algorithm": "CRC32", "checksum": "x"}
_DONE = {
    "done": "c",
    "size": 1,
    "etag": "f",
    "version": None,
    "algorithm": "CRC32",
    "crc": 5,
    "checked": True,
    "sha256": None,
}


def _lines(*entries: dict[str, Any]) -> list[bytes]:
    return [json.dumps(entry).encode() for entry in entries]


def _part(index: int) -> dict[str, Any]:
    return {"part": index, "of": "w", "crc": index}


def test_a_journal_is_replayed() -> None:
    lines = _lines({"run": "now"}, _BEGIN, _part(0), _part(2), _DONE)
    files = replay(lines, "now")
    assert files["w"].parts == {0: 0, 2: 2}
    assert not files["w"].doubtful
    assert files["c"].done
    assert not files["c"].done.doubtful
    # A file that is begun again has no parts.
    assert replay([*lines, *_lines(_BEGIN, _part(1))], "now")["w"].parts == {1: 1}


def test_what_was_written_before_the_machines_last_start_is_doubtful() -> None:
    files = replay(_lines({"run": "before"}, _BEGIN, _part(0), _part(1), _DONE, {"run": "now"}, _part(1)), "now")
    assert files["w"].doubtful == {0}
    assert files["c"].done
    assert files["c"].done.doubtful


@pytest.mark.parametrize(
    "torn", [b'{"part": 1, "of', b"null", b"{}", b'{"part": 1, "of": "unknown", "crc": 1}', b"\xff"]
)
def test_nothing_counts_after_a_torn_line(torn: bytes) -> None:
    lines = [*_lines({"run": "now"}, _BEGIN, _part(0)), torn, *_lines(_part(2))]
    assert replay(lines, "now")["w"].parts == {0: 0}


GIB = 1024**3


def _candidate(name: str, used: float, size: int = 10 * GIB, kept: str | None = None) -> Candidate:
    model, version = name.split("@")
    return Candidate(model, version, size, used, kept)


ALL = [
    _candidate("new@1", 50),
    _candidate("old@1", 10),
    _candidate("pinned@1", 1, kept="pinned"),
    _candidate("links@1", 2, size=0),
    _candidate("older@1", 5),
]


def _names(usage: Usage, needed: int = 0) -> list[str]:
    return [f"{one.model}@{one.version}" for one in to_remove(usage, ALL, Policy(0.9, 0.8, 2 * GIB), needed)]


def test_least_recently_used_goes_first_down_to_the_low_watermark() -> None:
    assert _names(Usage(100 * GIB, 10 * GIB)) == []
    assert _names(Usage(100 * GIB, 10 * GIB - 1)) == ["older@1", "old@1"]
    assert _names(Usage(100 * GIB, 0)) == ["older@1", "old@1"]


def test_for_a_job() -> None:
    # Fits, and stays below the high watermark.
    assert _names(Usage(100 * GIB, 40 * GIB), 30 * GIB) == []
    # Fits only beside the reserve when something goes.
    assert _names(Usage(100 * GIB, 12 * GIB), 11 * GIB) == ["older@1", "old@1"]
    # As many as can be; the caller sees that it does not fit.
    assert _names(Usage(100 * GIB, 1 * GIB), 90 * GIB) == ["older@1", "old@1", "new@1"]


def test_the_reserve() -> None:
    assert fits(Usage(100, 50), 40, Policy(reserve_bytes=10))
    assert not fits(Usage(100, 50), 41, Policy(reserve_bytes=10))


def test_names_that_hold_an_at_sign(tmp_path: Path) -> None:
    """Two versions whose names are the same when they are joined with "@": one is pinned, the other removed."""
    policy = Policy(high=0, low=0, reserve_bytes=0)
    engine = Engine(EngineConfig(tmp_path / "target", tmp_path / "state", policy=policy))
    names = [("m", "1@x"), ("m@1", "x")]
    for model, version in names:
        folder = engine.store.folder(model, version)
        folder.mkdir(parents=True)
        (folder / "w").write_bytes(b"weights")
        (folder / "READY.json").write_text(json.dumps({"files": {"w": {"size": 7}}}))
    engine.store.pin("m", "1@x")
    assert {(one.model, one.version): one.kept for one in engine.candidates()} == dict(
        zip(names, ("pinned", None), strict=True)
    )
    assert [(one.model, one.version) for one in engine.make_room()] == [("m@1", "x")]
    assert [(one.model, one.version) for one in engine.store.all()] == [("m", "1@x")]
