r"""The `format`s that can be enforced, and patterns for those that engines hold too loosely.

guidance and xgrammar turn a format into an expression of their own; some of these let values through
that a validator refuses (29 February of any year, second 60 at any minute, local parts of e-mail
addresses of any length, octets such as 077). For those a stricter pattern stands here; it allows a
subset of the format. Measured on llguidance 1.7.6 and xgrammar 0.2.8 by walking their grammars at random.
"""

_YEAR = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{3})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = r"[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,31}"
_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

STRICT_PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "email": rf"^{_ATOM}(?:\.{_ATOM}){{0,2}}@{_LABEL}(?:\.{_LABEL}){{0,2}}$",
    "hostname": rf"^{_LABEL}(?:\.{_LABEL}){{0,2}}$",
    "ipv4": rf"^{_OCTET}(?:\.{_OCTET}){{3}}$",
}
"""format: an ECMA-262 pattern that allows only strings of that format."""

ENFORCED = frozenset({*STRICT_PATTERNS, "duration", "ipv6", "uuid", "uri"})
"""The formats that both backends hold, by themselves or by the pattern above."""
