"""kill -9 at random moments: each time the next run ends with the verified model, and reads again at most the parts
that were in flight."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.fault_proxy import FaultProxy
from tests.support.prefetch import PART_BYTES, Bucket, files_in, noise, safetensors
from tests.support.prefetch_service import command, spawn

_THREADS = 4
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "model-00001-of-00003.safetensors": safetensors(31 * PART_BYTES + 11, 1),
    "model-00002-of-00003.safetensors": safetensors(17 * PART_BYTES, 2),
    "model-00003-of-00003.safetensors": safetensors(5 * PART_BYTES - 1, 3),
    "sub/empty": b"",
    "tokenizer.json": noise(PART_BYTES, 4),
}
_TOTAL = sum(map(len, MODEL.values()))


def _arguments(model: Bucket, proxy: FaultProxy, folder: Path) -> Sequence[str]:
    return (
        "pull", model.source, "--to", str(folder / "target"), "--state", str(folder / "state"), "--model", "m",
        "--s3-endpoint", proxy.url, "--part-bytes", str(PART_BYTES), "--concurrency", str(_THREADS),
        "--reserve-bytes", "0", "--high-watermark", "1", "--low-watermark", "1",
    )  # fmt: skip


def _kill_and_finish(model: Bucket, proxy: FaultProxy, folder: Path, chance: random.Random) -> None:
    proxy.reset()
    arguments = _arguments(model, proxy, folder)
    # Up to a little more than everything: then the verification or the publication is interrupted, or nothing.
    amount = chance.randint(1, int(_TOTAL * 1.05))
    process = spawn(*arguments)
    while process.poll() is None and proxy.downloaded() < min(amount, _TOTAL):
        time.sleep(0.0005)
    if amount > _TOTAL:
        time.sleep(chance.random() * 0.1)
    process.kill()
    process.wait()
    if process.stderr:
        process.stderr.close()
    final = folder / "target" / "m" / "1"
    if (final / "READY.json").exists():
        assert files_in(final) == MODEL
    said = command(*arguments)
    assert said.returncode == 0, said.stderr
    assert files_in(final) == MODEL
    assert (final.parent / "current").readlink() == Path("1")
    assert not list((folder / "target" / ".staging").iterdir())
    assert proxy.downloaded() - _TOTAL <= _THREADS * PART_BYTES
    said = command("verify", "--target", str(folder / "target"))
    assert said.stdout == "m 1: ok\n"


@pytest.mark.parametrize(
    "kills", [2, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(1200)])], ids=["few", "many"]
)
def test_kill_9(kills: int, bucket: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    bucket.put_all(MODEL)
    chance = random.Random(7)
    for number in range(kills):
        _kill_and_finish(bucket, proxy, tmp_path / str(number), chance)
