"""The relay's C++ under the compiler's sanitizers: no access outside, nothing undefined, no race."""

from pathlib import Path

import pytest

from devtools.paths import ROOT
from tests.support.sanitizers import BOTH, run_sanitized


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sanitizers", BOTH)
def test_sanitizers_find_nothing(tmp_path: Path, sanitizers: str) -> None:
    driver = Path(__file__).parent / "native" / "driver.cpp"
    run_sanitized(ROOT / "gateway_relay" / "src", driver, sanitizers, tmp_path)
