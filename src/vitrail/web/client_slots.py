"""Slots of clients: who holds how many slots, and whose turn is next.

A slot is the right to run one step. Long steps hold all slots but one, at most, so that a short step finds a free one.
The client that holds the fewest slots is next; of several, the one that has used the least time, in units of `QUANTUM`;
of several, the one that has waited longest. A client that arrives starts with the least time of those that are present,
so neither a new client nor an old one is at an advantage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

#: Seconds for which a long step keeps its slot, at least, and the unit in which used time is compared.
QUANTUM = 0.05


class ClientSlots:
    """The slots that clients hold and the time they have used; the caller holds a lock.

    Example:
        >>> slots = ClientSlots(2, reserved=1)
        >>> for client in "ab":
        ...     slots.arrive(client)
        >>> slots.hold_slot(["a"], is_long=True)
        >>> slots.has_slot(is_long=True), slots.has_slot(is_long=False)
        (False, True)
        >>> slots.charge(["a"], 1.0)
        >>> slots.should_yield("a", 1.0, ["b"]), slots.order(["a", "b"])
        (True, ['b', 'a'])
    """

    def __init__(self, slots: int, reserved: int = 0) -> None:
        self._slots = {True: max(1, slots - reserved), False: slots}
        self._steps: Counter[bool] = Counter()
        self._held: Counter[str] = Counter()
        self._used: dict[str, float] = {}

    @property
    def busy(self) -> int:
        """Number of slots that are held."""
        return self._steps.total()

    @property
    def runs_short(self) -> bool:
        """Whether a short step holds a slot."""
        return self._steps[False] > 0

    def has_slot(self, is_long: bool) -> bool:
        """Whether a slot is free for a long or a short step."""
        return self.busy < self._slots[False] and (not is_long or self._steps[True] < self._slots[True])

    def arrive(self, client: str) -> None:
        """Note that a client has a task."""
        if client not in self._used:
            self._used[client] = min(self._used.values(), default=0.0)

    def leave(self, client: str) -> None:
        """Note that a client has no task left."""
        self._used.pop(client, None)

    def hold_slot(self, clients: Iterable[str], is_long: bool) -> None:
        """Take one slot for a step of one client, or for one that several clients share."""
        self._steps[is_long] += 1
        self._held.update(clients)

    def release_slot(self, clients: Iterable[str], is_long: bool) -> None:
        """Give one slot back."""
        self._steps[is_long] -= 1
        self._held.subtract(clients)
        self._held += Counter()  # drops zeros

    def charge(self, clients: Sequence[str], seconds: float) -> None:
        """Charge time to clients, in equal shares."""
        for client in clients:
            if client in self._used:
                self._used[client] += seconds / len(clients)

    def order(self, clients: Iterable[str]) -> list[str]:
        """Sort clients by turn; those that are equal keep their order."""
        return sorted(clients, key=lambda client: (self._held[client], self._quanta(client)))

    def should_yield(self, client: str, seconds: float, waiting: Iterable[str]) -> bool:
        """Whether a long step that has held a slot for some seconds should give it to one of those that wait."""
        if self.has_slot(is_long=True):
            return False
        held, quanta = self._held[client], self._quanta(client)
        return any(
            self._held[other] + 1 < held
            or (self._held[other] < held and seconds >= QUANTUM and self._quanta(other) <= quanta)
            for other in waiting
            if other != client
        )

    def _quanta(self, client: str) -> int:
        return int(self._used.get(client, 0.0) / QUANTUM)
