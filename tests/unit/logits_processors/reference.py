"""What a constraint allows, found anew from the whole output each time: slow, and meant to be seen to be right."""

from collections.abc import Sequence
from dataclasses import dataclass

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class CatalogReference:
    """The output is `items` different entries, with the separator between; then an end token."""

    entries: frozenset[Tokens]
    items: int
    separator: Tokens
    ends: frozenset[int]

    def allowed(self, output: Sequence[int]) -> set[int]:
        """Empty where an output is that no token can mend."""
        used: set[Tokens] = set()
        current: Tokens = ()
        separator_left: Tokens = ()
        for token in output:
            if separator_left:
                if token != separator_left[0]:
                    return set(self.ends) if token in self.ends else set()
                separator_left = separator_left[1:]
            elif (current := (*current, token)) in self._starts(used):
                continue
            elif current[:-1] in self.entries - used and len(used) + 1 < self.items and token == self.separator[0]:
                used.add(current[:-1])
                current, separator_left = (), self.separator[1:]
            else:
                return set(self.ends) if token in self.ends else set()
        if separator_left:
            return {separator_left[0]}
        tokens = {start[-1] for start in self._starts(used) if start[:-1] == current}
        if current in self.entries - used:
            tokens |= {self.separator[0]} if len(used) + 1 < self.items else set(self.ends)
        return tokens

    def _starts(self, used: set[Tokens]) -> set[Tokens]:
        """How what is left of the entries may begin."""
        return {entry[:length] for entry in self.entries - used for length in range(1, len(entry) + 1)}


@dataclass(frozen=True)
class NgramReference:
    """No `size` tokens in a row come twice."""

    size: int
    vocabulary: int

    def allowed(self, output: Sequence[int]) -> set[int]:
        had = {tuple(output[place : place + self.size]) for place in range(len(output) - self.size + 1)}
        last = tuple(output[len(output) - self.size + 1 :]) if len(output) >= self.size - 1 else None
        return {token for token in range(self.vocabulary) if last is None or (*last, token) not in had}


Reference = CatalogReference | NgramReference
