"""How the requests for one served name are shared out among the versions of its model. Pure.

Smooth weighted round robin, as in nginx: of any few requests in a row each version gets its part, and nothing is drawn
by chance.
"""

from collections.abc import Collection, Mapping


class Weights:
    """`current` is the weight of each version by Triton's name; one with 0 gets no requests. `previous`: what a
    roll-back goes back to."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.current = dict(weights)
        self.previous: dict[str, int] | None = None
        self._credit = dict.fromkeys(weights, 0)

    def replace(self, weights: Mapping[str, int]) -> None:
        """All at once. `weights` names every version; at least one is above 0."""
        self.previous, self.current = self.current, dict(weights)
        self._credit = dict.fromkeys(weights, 0)

    def roll_back(self) -> bool:
        """Change places with the weights before; False where there are none."""
        if self.previous is None:
            return False
        self.replace(self.previous)
        return True

    def pick(self, able: Collection[str]) -> str | None:
        """The version for the next request, of those that are `able` to take one; None where there is none."""
        weights = {version: weight for version, weight in self.current.items() if weight and version in able}
        if not weights:
            return None
        for version, weight in weights.items():
            self._credit[version] += weight
        chosen = max(weights, key=lambda version: self._credit[version])
        self._credit[chosen] -= sum(weights.values())
        return chosen
