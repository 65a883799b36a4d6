"""The types of the native part; how it works is said in src/."""

from collections.abc import Sequence

def read_head(
    data: bytes, path: bytes, longest: int, kept: tuple[bytes, ...] | None = None
) -> tuple[list[tuple[bytes, bytes]], bytes] | bool:
    """The headers (names in lower case) and the body of a request that is `POST path` and all of `data`, without
    anything out of the ordinary in its head. True: it may be one that has not come completely; False: it is none.
    `longest`: in bytes, of all. `kept`: the names of the headers that are wanted; None: all."""

def read_chat(body: bytes) -> tuple[bytes, list[dict[str, str]]] | None:
    """What stands around the messages of a chat request, and the messages, where each is a role and a text. The former
    is the same bytes for every body that asks for the same otherwise. None for any other body. What stands around was
    not checked: it is worth something to who has seen it in a body that was valid."""

class ProtocolError(Exception):
    """The peer does not speak HTTP/1.1 as a generate stream does."""

class ResponseParser:
    """One of Triton's responses, as the gateway's `gateway.triton.response_parser` explains it."""

    def __init__(self, longest_event: int, longest_head: int) -> None:
        """In bytes."""
    def feed(self, data: bytes) -> None:
        """Raises `ProtocolError`."""
    def eof(self) -> None:
        """Raises `ProtocolError`."""
    def take(self, most: int) -> list[bytes]: ...
    @property
    def status(self) -> int: ...
    @property
    def done(self) -> bool: ...
    @property
    def reusable(self) -> bool: ...
    @property
    def error_body(self) -> bytes: ...
    @property
    def has_events(self) -> bool:
        """Whether `take` has any."""
    @property
    def is_between_chunks(self) -> bool: ...

class Outcome:
    """What was relayed of a stream, and what is left for whoever goes on."""

    @property
    def rest(self) -> bytes:
        """What came from Triton and was not relayed, from the beginning of a chunk on."""
    @property
    def unsent(self) -> bytes:
        """The end of what must still be written to the client, ahead of anything else."""
    @property
    def tokens(self) -> int: ...
    @property
    def prompt_tokens(self) -> int:
        """0 where the engine did not say it."""
    @property
    def tally(self) -> list[int]:
        """How many of the tokens' times between them fell into each bucket, the last one without an upper bound."""
    @property
    def gap_sum(self) -> float:
        """Their sum, in seconds."""
    @property
    def last(self) -> float:
        """When the last tokens came, as `time.monotonic`."""

class Stream:
    """One that was started. It moves until it is stopped, or ends by itself: whatever is not text in the middle of an
    answer is left for whoever started it."""

    @property
    def number(self) -> int: ...
    @property
    def tokens(self) -> int:
        """So far."""
    @property
    def is_held(self) -> bool:
        """Whether it waits for the client to read."""

class Relay:
    """A thread that moves any number of streams."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper bounds of the buckets of inter-token latency, in seconds. Raises `OSError`."""
    def fileno(self) -> int:
        """A descriptor that can be read when streams have ended by themselves."""
    def start(self, upstream: int, client: int, prefix: bytes, suffix: bytes, last: float) -> Stream:
        """From now on what comes from `upstream` goes to `client`, in chunks of HTTP/1.1 with an event for each text:
        `prefix`, the text as JSON, `suffix`.

        Both are the numbers of sockets that do not block. `client` is duplicated; `upstream` must stay open until the
        stream is stopped, stand between two chunks, and be read by nobody else. `last`: when the last tokens came.
        Raises `OSError`.
        """
    def stop(self, stream: Stream) -> Outcome:
        """From here on neither socket of a stream is touched. What came of it is for the first caller."""
    def ended(self) -> list[int]:
        """The numbers of the streams that have ended by themselves since the last call. They are to be stopped all the
        same."""
    def close(self) -> None:
        """End the thread: no stream moves any more."""
