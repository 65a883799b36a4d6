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
        """What came from Triton and was not relayed, from the beginning of a chunk on; of an answer that was asked for
        and whose head is not `has_head`, from its beginning on."""
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
        """When the last tokens came, as `time.monotonic`; 0.0 before any."""
    def take_socket(self) -> int:
        """Of a request that was asked and whose answer is not over: the connection, for who goes on and closes it. -1
        where there is none; of one that has ended by itself and is not finished, since none could be made."""
    @property
    def has_head(self) -> bool:
        """Whether the head of the answer was read."""
    @property
    def is_begun(self) -> bool:
        """Whether the head and the first event are with the client, or in `unsent`."""
    @property
    def is_finished(self) -> bool:
        """Whether all of the answer is with the client, or in `unsent`."""
    @property
    def connect_seconds(self) -> float:
        """That it took to make one; 0.0 for one that was kept."""
    @property
    def head_at(self) -> float:
        """When the first event came; 0.0 before."""
    @property
    def first(self) -> float:
        """When the first tokens came; 0.0 before."""
    @property
    def reason(self) -> str:
        """Why the engine has ended the answer; empty before."""

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
    @property
    def is_finished(self) -> bool:
        """Whether all has come of what was asked for: from here on the client may have all of the answer."""
    @property
    def is_connecting(self) -> bool:
        """Whether there is no connection to Triton yet."""

class Upstreams:
    """Connections to one Triton, which are kept when a request is over, for the next one."""

    def __init__(self, host: str, port: str, most: int) -> None:
        """`host`: an IP address; up to `most` are kept. Raises `ValueError`."""
    def close_idle(self, seconds: float) -> float:
        """Those that nobody has taken for so long. In how many seconds the next one will be due; 0.0 where none is
        left."""
    def close(self) -> None:
        """None is kept from now on."""

class Telling:
    """How the answers to requests of one form are told: the client's events, each without what names the answer at its
    beginning."""

    def __init__(
        self,
        begin: bytes,
        before: bytes,
        after: bytes,
        finish_before: bytes,
        finish_after: bytes,
        usage_before: bytes,
        usage_after: bytes,
        end: bytes,
    ) -> None:
        """`begin`: ahead of the first text. `before` and `after` stand around a text, the others around the reason of
        the end and around the usage; `usage_before` is empty where that is not wanted. `end`: behind all, whole."""

class Question:
    """What Triton is asked in requests of one form: bodies in three parts, around the answer's name and the prompt."""

    def __init__(self, begin: bytes, middle: bytes, end: bytes) -> None: ...
    def request(self, head: bytes, headers: bytes, id: str, prompt: str) -> bytes:
        """Of HTTP/1.1. `head` are its first lines, `headers` those behind the length; each line has its end."""

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
    def ask(
        self, upstreams: Upstreams, request: bytes, client: int, head: bytes, identity: bytes, telling: Telling
    ) -> Stream:
        """Send `request` to one of `upstreams`, and tell the answer to `client` as a stream of HTTP/1.1: `head`, and
        chunks of events that begin with `identity`. The thread asks where a connection is to be made, or many have come
        at once; of that it may not hear before `flush`. Raises `OSError`; as for the rest, see `start`."""
    @property
    def is_due(self) -> bool:
        """Whether there is something to `flush`."""
    def flush(self) -> None:
        """No more comes at once: tell the thread what it is to ask."""
    def stop(self, stream: Stream) -> Outcome:
        """From here on neither socket of a stream is touched. What came of it is for the first caller. A request that
        was asked and has not ended by itself is given up."""
    def ended(self) -> list[int]:
        """The numbers of the streams that have ended by themselves since the last call. They are to be stopped all the
        same."""
    def poll_fileno(self) -> int:
        """A descriptor that can be read when `poll` has something to do."""
    def poll(self) -> list[int]:
        """Move the streams that were asked for: the thread takes those that become long. The numbers of those that have
        ended, which are to be stopped all the same."""
    def close(self) -> None:
        """End the thread: none of its streams moves any more."""
