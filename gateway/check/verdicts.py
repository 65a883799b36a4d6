"""What the check can say of a field. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    SEEN = "effect seen"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`how` says in a few words by what it was seen, or why not."""

    kind: Kind
    how: str


def seen(how: str) -> Verdict:
    """The answer shows that the field was obeyed."""
    return Verdict(Kind.SEEN, how)


def accepted(how: str) -> Verdict:
    """The request was answered; whether the field was obeyed, the answer does not show."""
    return Verdict(Kind.ACCEPTED, how)


def refused(how: str) -> Verdict:
    """This deployment cannot do it, and says so."""
    return Verdict(Kind.REFUSED, how)


def failed(how: str) -> Verdict:
    """It must work here by the table of fields, and does not."""
    return Verdict(Kind.FAILED, how)
