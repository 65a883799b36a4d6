"""What the relay asks of Triton: the bytes that the usual way sends for the same request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.triton.contract import Backend, BodyParts, GenerateRequest
from gateway_relay import Question

HEAD = b"POST /v2/models/m/generate_stream HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
TRICKY = ["", '"', "\\", "\x00\x1f\x7f\x80", "\b\t\n\f\r\v", "日本 🎉 é\u2028"]
# Beside the words of eight bytes that are looked at together.
TRICKY += ["a" * 7 + '"', "b" * 8 + "\\", "c" * 4000 + "\n"]


def parts(backend: Backend = Backend.OURS) -> BodyParts:
    return BodyParts.of(backend, GenerateRequest("", {"max_tokens": 5}), 100)


@pytest.mark.parametrize("backend", list(Backend))
@given(
    name=st.sampled_from(TRICKY) | st.text(max_size=40),
    prompt=st.lists(st.sampled_from(TRICKY) | st.text(max_size=40), max_size=5).map("".join),
    headers=st.sampled_from([b"", b"traceparent: 00-1-2-01\r\n"]),
)
def test_the_bytes_of_the_usual_way(backend: Backend, name: str, prompt: str, headers: bytes) -> None:
    body = parts(backend).body(name, prompt)
    whole = b"%bContent-Length: %d\r\n%b\r\n%b" % (HEAD, len(body), headers, body)
    assert Question(*parts(backend)).request(HEAD, headers, name, prompt) == whole


def test_a_half_of_a_pair_is_no_text() -> None:
    with pytest.raises((UnicodeEncodeError, TypeError)):
        Question(*parts()).request(HEAD, b"", "a", "\ud800")
