"""`python -m bench parity` between gateways: of one with itself, and of one with another that can do less."""

import re

import pytest

from bench.__main__ import main
from tests.support.gateway import Gateway


@pytest.mark.usefixtures("engine")
def test_a_gateway_answers_as_itself(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "--url", gateway.url, "--against", f"{gateway.url}/v1"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^1[0-9]{2} requests: 1[0-9]{2} the same, 0 explained, 0 DIFFERENT$", shown, re.MULTILINE)
    assert "Not asked" not in shown


@pytest.mark.usefixtures("engine", "stock")
def test_what_a_stock_backend_cannot_do_is_different(
    stock_gateway: Gateway, gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind the same gateway, so that what both refuse is refused alike."""
    assert main(["parity", "--url", stock_gateway.url, "--against", gateway.url, "--only", "request shapes"]) == 1
    shown = capsys.readouterr().out
    assert re.search(r"^DIFFERENT  400  chat: return_token_ids$", shown, re.MULTILINE)
    assert re.search(r"^same       200  chat: plain$", shown, re.MULTILINE)
    assert re.search(r"^  status: \d+ requests, such as ", shown, re.MULTILINE)
