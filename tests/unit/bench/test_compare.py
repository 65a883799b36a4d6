"""The comparison: its judgements on known values, and all of it once, in a tiny size."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.__main__ import main
from bench.compare import tables
from bench.compare.measures import Burst, RequestCost, SlowReaders, TokenCost
from bench.compare.plot import draw
from bench.compare.servers import BARE, GATEWAY, NGINX, running_nginx
from bench.compare.usage import CpuTime, cpu_time, memory_bytes
from bench.compare.verdict import Judged, Results, Spread, judge
from bench.ports import free_port
from devtools.errors import DevError

_SVG = "{http://www.w3.org/2000/svg}"


def tokens(*microseconds: float) -> list[TokenCost]:
    return [TokenCost(value, 1000, 0.0) for value in microseconds]


def median(one: Judged) -> float:
    assert one.value is not None
    return one.value.median


def judged(results: Results) -> dict[str, Judged]:
    return {one.name: one for one in judge(results)}


def test_ratios_are_of_pairs_and_their_median_counts() -> None:
    found = judged(Results(tokens={NGINX: tokens(10, 20, 30), GATEWAY: tokens(15, 80, 54)}))
    ratio = found["CPU per streamed token, gateway / nginx"]
    assert ratio.value == Spread(1.8, 1.5, 4.0)
    assert (ratio.target, ratio.is_met) == (2.0, True)
    assert found["the same, where the gateway's sink is native"].is_met is False


def test_rounds_in_which_tokens_came_together_do_not_count() -> None:
    apart, together = TokenCost(40, 1000, 0.04), TokenCost(20, 1000, 0.3)
    nginx = tokens(20, 20)
    ratio = judged(Results(tokens={NGINX: nginx, GATEWAY: [apart, together]}))[
        "CPU per streamed token, gateway / nginx"
    ]
    assert ratio.value == Spread(2, 2, 2)
    assert ratio.remark.startswith("1 of 2 rounds left out")
    assert tables.costs(Results(tokens={GATEWAY: [apart, together]})).rows[0][1] == "40.0 µs (40.0 to 40.0)"
    ratio = judged(Results(tokens={NGINX: nginx, GATEWAY: [together] * 2}))["CPU per streamed token, gateway / nginx"]
    assert ratio.value is None
    assert ratio.is_met is False


def test_tables_on_a_page() -> None:
    results = Results(
        tokens={NGINX: tokens(10, 12, 11), GATEWAY: tokens(30, 33, 60)}, requests={BARE: [RequestCost(9, 5)]}
    )
    made = tables.markdown(tables.costs(results)) + tables.markdown(tables.ratios(judge(results)))
    begin, end = tables.marks("measured")
    page = f"Before.\n\n{begin}\nold\n{end}\nBehind.\n"
    written = tables.put_into(page, made)
    assert written == f"Before.\n\n{begin}\n{made}{end}\nBehind.\n"
    assert "| nginx | 11.0 µs (10.0 to 12.0) | 0.0 % |  |  |  |" in written
    assert "| bare FastAPI |  |  | 9.0 µs (9.0 to 9.0) | 5 |  |" in written
    assert "| CPU per streamed token, gateway / nginx | 3.00 | 2.75 to 5.45 | ≤ 2 | NOT MET |" in written
    with pytest.raises(ValueError, match="has no lines"):
        tables.put_into("A page.\n", made)


def test_the_plot() -> None:
    results = Results(tokens={NGINX: tokens(10, 12), "a & b": tokens(30, 40, 50)}, requests={})
    root = ElementTree.fromstring(draw(results))
    bars = [float(bar.attrib["width"]) for bar in root.iter(f"{_SVG}rect") if bar.attrib["width"] != "100%"]
    assert bars[1] / bars[0] == pytest.approx(40 / 11, rel=0.01)
    texts = [text.text for text in root.iter(f"{_SVG}text")]
    assert texts == ["CPU µs per streamed token", NGINX, "11.0", "a & b", "40.0"]


def test_other_gateways_are_shown_without_a_target() -> None:
    costs = [RequestCost(100, 1)]
    results = Results(
        tokens={NGINX: tokens(10), GATEWAY: tokens(20), "other": tokens(50)},
        requests={BARE: costs, GATEWAY: [RequestCost(150, 1)], NGINX: costs, "other": [RequestCost(300, 1)]},
    )
    found = judged(results)
    assert median(found["CPU per streamed token, other / nginx"]) == 5
    assert found["CPU per streamed token, other / nginx"].is_met is None
    assert median(found["CPU per request of 4 KB, gateway / other"]) == 0.5
    assert found["CPU per request of 4 KB, gateway / bare FastAPI"].is_met is False


def test_bursts_slow_readers_and_growth() -> None:
    bursts = {
        NGINX: [Burst(0.1, 0.2, 0), Burst(0.1, 0.2, 0)],
        GATEWAY: [Burst(0.2, 0.3, 39 * 1024), Burst(0.2, 0.5, 90 * 1024)],
    }
    slow = [SlowReaders(0.02, 0.03, 100 * 1024), SlowReaders(0.02, 0.04, 900 * 1024)]
    found = judged(Results(bursts=bursts, slow_readers=slow, growth_bytes=1024, growth_requests=1000))
    assert median(found["burst, 99th percentile to the first token, gateway / nginx"]) == pytest.approx(2.0)
    # Of a gateway that has not had a burst yet.
    assert median(found["memory per open stream"]) == 39
    assert median(found["memory per slow reader"]) == 100
    assert median(found["between tokens (p99) beside slow readers / without"]) == pytest.approx(1.75)
    assert found["memory gained from 100 to 1000 requests"].is_met is True
    assert judge(Results()) == []


def test_cpu_time_is_exact_while_threads_live_and_in_ticks_when_one_has_ended() -> None:
    hertz = os.sysconf("SC_CLK_TCK")
    assert CpuTime(5 * hertz, {1: 3_000, 2: 2_000_000_500}).since(CpuTime(0, {1: 1_000})) == 2.0000025
    assert CpuTime(5 * hertz, {2: 9}).since(CpuTime(3 * hertz, {1: 7, 2: 8})) == 2.0


def test_usage_of_a_process() -> None:
    before = cpu_time([os.getpid()])
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    assert cpu_time([os.getpid()]).since(before) >= 0.05
    assert memory_bytes([os.getpid()]) > 1 << 20
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert cpu_time([ended.pid]) == CpuTime(0, {})
    assert memory_bytes([ended.pid]) == 0


def test_without_nginx_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    with pytest.raises(DevError, match="nginx is what the gateway is compared with"), running_nginx("x", tmp_path):
        pass


_FORWARDER = """
import asyncio, sys

async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()

async def forward(reader, writer):
    to_reader, to_writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[2].rpartition(":")[2]))
    await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))

async def main():
    async with await asyncio.start_server(forward, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()

asyncio.run(main())
"""


def test_the_whole_comparison_in_a_tiny_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, forwarder, port = tmp_path / "measures.json", tmp_path / "forwarder.py", free_port()
    forwarder.write_text(_FORWARDER)
    page, plot = tmp_path / "page.md", tmp_path / "plot.svg"
    page.write_text("\n".join([*tables.marks("measured"), ""]))
    sizes = ["--rounds", "1", "--streams", "8", "--seconds", "0.2", "--requests", "20", "--burst", "16"]
    parts = [flag for part in ("burst", "token", "request", "slow", "growth") for flag in ("--only", part)]
    other = ["--other", f"forwarder=http://127.0.0.1:{port}={sys.executable} {forwarder} {port} {{upstream}}"]
    others = ["--slow-readers", "2", "--growth-requests", "40", "--json", str(file)]
    others += ["--into", str(page), "--plot", str(plot)]
    code = main(["compare", *sizes, *parts, *others, *other])
    found = json.loads(file.read_text())
    # Of the tiny size only that it was measured can be said.
    assert code in (0, 1)
    measures = found["measures"]
    assert measures["tokens"].keys() == {NGINX, GATEWAY, "forwarder"}
    assert measures["requests"].keys() == {NGINX, GATEWAY, BARE, "forwarder"}
    assert measures["bursts"].keys() == {NGINX, GATEWAY}
    assert [len(rounds) for rounds in measures["tokens"].values()] == [1, 1, 1]
    assert all(one["microseconds"] > 0 for rounds in measures["tokens"].values() for one in rounds)
    assert len(measures["slow_readers"]) == 1
    assert "| gateway |" in page.read_text()
    assert ElementTree.parse(plot).getroot().tag == f"{_SVG}svg"
    shown = capsys.readouterr().out
    assert shown.index("per streamed token") < shown.index("Ratios") < shown.index("gateway / nginx")


def test_a_part_that_goes_wrong_is_told_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forwarder, port = tmp_path / "forwarder.py", free_port()
    # The fourth token is not what was sent; an answer of one token has none.
    forwarder.write_text(_FORWARDER.replace("write(data)", "write(data.replace(b' 0003', b' 0009'))"))
    flags = ["--rounds", "1", "--only", "token", "--streams", "2", "--seconds", "0.1", "--only", "request"]
    other = f"liar=http://127.0.0.1:{port}={sys.executable} {forwarder} {port} {{upstream}}"
    assert main(["compare", *flags, "--requests", "20", "--other", other]) == 1
    shown = capsys.readouterr()
    assert "bench compare: token was not measured to its end: liar: 2 of 2 answers are wrong" in shown.err
    assert "CPU per request of 4 KB, gateway / liar" in shown.out
