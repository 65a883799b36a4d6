"""Requests that differ from earlier ones in nothing but their messages, which is how services ask: what was made of the
earlier one holds for the next, so that only the messages are read and rendered.

The form of a request is its body without the array of its messages, byte by byte. `gateway_relay` finds it, where that
is installed; whatever it does not find goes the usual way, with the same outcome. A form is learned when it is seen for
the second time, since some say something else in each request, such as the number of a user.
"""

from typing import Any, Generic, NamedTuple, TypeVar

from gateway.openai.schema import LARGE_BODY

try:
    from gateway_relay import read_chat, read_head
except ImportError:
    read_chat = read_head = None  # type: ignore[assignment]

LONGEST = LARGE_BODY - 1
"""Bytes of a request: of longer ones nothing is kept when they are over."""
_LONGEST_FORM = 8 * 1024
_MOST_FORMS = 256
_MOST_SEEN = 4096
# What is read of a head by whoever gets a known request: `gateway.access.authentication`, `gateway.observe.record`.
_KEPT = (b"authorization", b"x-request-id", b"traceparent", b"tracestate")

Messages = list[dict[str, Any]]
Headers = list[tuple[bytes, bytes]]
_Form = TypeVar("_Form")

class Known(NamedTuple, Generic[_Form]):
    """A request of a known form, whose `body` holds these messages: a role and a text each. `headers` are those that
    are read here."""

    headers: Headers
    body: bytes
    messages: Messages
    form: _Form


class Forms(Generic[_Form]):
    """What is known of the forms of one path's requests, of up to `longest` bytes. Of many only the last ones."""

    def __init__(self, path: str, longest: int = LONGEST) -> None:
        self.path = path
        self._longest = min(longest, LONGEST)
        self._path = path.encode()
        self._seen: set[int] = set()
        self._known: dict[bytes, _Form | None] = {}

    def recognize(self, data: bytes) -> Known[_Form] | bool:
        """A request that is all of `data`. True: perhaps it is one whose rest is still to come; False: it is to go the
        usual way."""
        if read_head is None:
            return False
        head = read_head(data, self._path, self._longest, _KEPT)
        if isinstance(head, bool):
            return head
        chat = read_chat(head[1])
        form = None if chat is None else self._known.get(chat[0])
        return False if chat is None or form is None else Known(*head, chat[1], form)

    def new(self, body: bytes) -> bytes | None:
        """The form of a request that goes the usual way, if it is to be learned."""
        if read_chat is None or len(body) > self._longest or (chat := read_chat(body)) is None:
            return None
        form = chat[0]
        if form in self._known or len(form) > _LONGEST_FORM:
            return None
        if (number := hash(form)) in self._seen:
            return form
        if len(self._seen) == _MOST_SEEN:
            self._seen.clear()
        self._seen.add(number)
        return None

    def learn(self, form: bytes, known: _Form | None) -> None:
        """None: of this form each request is to go the usual way."""
        if len(self._known) == _MOST_FORMS and form not in self._known:
            del self._known[next(iter(self._known))]
        self._known[form] = known

    def outdated(self, known: _Form) -> None:
        """What is known of a form does not hold any more."""
        for form in [form for form, one in self._known.items() if one is known]:
            del self._known[form]
