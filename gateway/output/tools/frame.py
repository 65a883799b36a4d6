"""How a family writes a call whose arguments are plain JSON: what a structural tag is made of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallFrame:
    """`before` and `after` stand around a call's arguments, with `{name}` for the function's name. Where calls stand
    in a section, `section` opens and closes it and `separator` stands between two calls. `trigger` is the text after
    which nothing but a call may follow."""

    trigger: str
    before: str
    after: str
    section: tuple[str, str] | None = None
    separator: str = ""
