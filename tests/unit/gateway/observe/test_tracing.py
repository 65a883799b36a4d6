"""The extra that spans need: missed with a sentence, imported only where it is wanted."""

import subprocess
import sys

import pytest

from devtools.paths import ROOT
from gateway.observe.tracing import check_packages
from service_base.errors import SettingsError


def test_a_missing_extra_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    check_packages()
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(SettingsError, match=r"'otlp_endpoint' needs OpenTelemetry: install '\.\[gateway,tracing\]'\."):
        check_packages()


def test_without_a_collector_nothing_of_it_is_imported() -> None:
    # Its API alone is what other libraries import where they find it.
    code = "import sys, gateway.app; print([name for name in sys.modules if 'opentelemetry.sdk' in name])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
