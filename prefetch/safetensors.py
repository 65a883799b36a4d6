"""The safetensors format: is a file's header sound and does it cover the file; does an index name what is there. Pure.

The format (safetensors README, "Format"): 8 bytes N, little-endian; N bytes of JSON, an object that maps each tensor's
name to `dtype`, `shape` and `data_offsets` [begin, end) within the rest of the file, which the tensors cover without a
gap. `__metadata__` maps text to text.
"""

from collections.abc import Callable, Mapping
from typing import Any

from service_base import strict_json

# The library refuses a larger header (MAX_HEADER_SIZE).
_MAX_HEADER_BYTES = 100_000_000

# Bits of one element. A type that is not listed is not checked for its size: new ones come with new hardware.
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


def tensors(size: int, read: Callable[[int, int], bytes]) -> set[str]:
    """The names of a file's tensors. `read(offset, length)` reads from the file of `size` bytes.

    Raises ValueError with a sentence's end that says what is wrong.
    """
    if size < 8:
        raise ValueError(f"it has {size} bytes, too few for a safetensors header")
    length = int.from_bytes(read(0, 8), "little")
    if length > _MAX_HEADER_BYTES:
        raise ValueError(f"its safetensors header would have {length} bytes")
    if 8 + length > size:
        raise ValueError(f"its safetensors header of {length} bytes ends beyond the file of {size} bytes")
    try:
        header = strict_json.value_of(read(8, length))
    except ValueError as error:
        raise ValueError(f"its safetensors header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise ValueError("its safetensors header is not a JSON object")
    header.pop("__metadata__", None)
    _check_cover(header, size - 8 - length)
    return set(header)


def missing_files(index: Any, files: Mapping[str, set[str] | None]) -> list[str]:
    """What an index (`*.safetensors.index.json`, parsed) names and the model lacks: files, and tensors in them.

    `files` maps the paths beside the index to their tensors, or to None where these are not known yet. Raises
    ValueError with a sentence's end where it is no index.
    """
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise ValueError("it has no weight_map from tensors to files")
    absent = sorted({file for file in weight_map.values() if file not in files})
    for tensor, file in weight_map.items():
        known = files.get(file)
        if known is not None and tensor not in known:
            absent.append(f"tensor {tensor} in {file}")
    return absent


def _check_cover(header: dict[str, Any], data_bytes: int) -> None:
    spans = []
    for name, tensor in header.items():
        try:
            dtype, shape, (begin, end) = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
            elements = 1
            for dimension in shape:
                elements *= _count(dimension)
            begin, end = _count(begin), _count(end)
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                f"the tensor {name!r} in its safetensors header lacks a right dtype, shape or place"
            ) from None
        if (bits := _BITS.get(dtype)) is not None and elements * bits != (end - begin) * 8:
            raise ValueError(f"the tensor {name!r} has {end - begin} bytes, not those of {dtype} {shape}")
        spans.append((begin, end))
    covered = 0
    for begin, end in sorted(spans):
        if begin != covered or end < begin:
            raise ValueError("its tensors leave a gap or overlap")
        covered = end
    if covered != data_bytes:
        raise ValueError(f"its tensors cover {covered} bytes and the file has {data_bytes} of them: it is incomplete")


def _count(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError
    return number
