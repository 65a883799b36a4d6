"""Names for requests and answers: 32 hexadecimal digits that nobody can guess and that nothing else has."""

import os
import secrets

_AT_ONCE = 64
_BYTES = 16

_left: list[str] = []


def new_id() -> str:
    # The kernel's random bytes cost a system call, however few they are.
    if not _left:
        drawn = secrets.token_hex(_AT_ONCE * _BYTES)
        _left.extend(drawn[at : at + 2 * _BYTES] for at in range(0, len(drawn), 2 * _BYTES))
    return _left.pop()


# Two processes must not have the same ones.
os.register_at_fork(after_in_child=_left.clear)
