"""The fair queue in front of a model: who is let in, who waits, who is refused."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.desk.queue import Change, FairQueue, Ticket


def test_there_is_room_and_then_there_is_none() -> None:
    queue = FairQueue[Ticket](capacity=2, max_waiting=1)
    first, second, third, fourth = (Ticket("a", 1) for _ in range(4))
    assert queue.offer(first) == Change([first], [])
    assert queue.offer(second) == Change([second], [])
    assert queue.offer(third) == Change([], [])
    assert queue.offer(fourth) == Change([], [fourth])
    assert (queue.open, queue.waiting, queue.open_of("a")) == (2, 1, 2)
    assert queue.leave(first) == Change([third], [])
    assert queue.leave(second) == Change([], [])
    assert queue.leave(third) == Change([], [])
    assert (queue.open, queue.waiting, queue.open_of("a")) == (0, 0, 0)


def test_without_waiting_places_who_does_not_fit_is_refused() -> None:
    queue = FairQueue[Ticket](capacity=3, max_waiting=0)
    queue.offer(Ticket("a", 2))
    large, small = Ticket("b", 2), Ticket("b", 1)
    assert queue.offer(large) == Change([], [large])
    assert queue.offer(small) == Change([small], [])


def test_the_better_priority_is_first_whoever_came_first() -> None:
    queue = FairQueue[Ticket](1, 10)
    queue.offer(running := Ticket("a", 1))
    late, early, urgent = Ticket("a", 1, 5), Ticket("b", 1, 0), Ticket("c", 1, -1)
    for ticket in (late, early, urgent):
        assert queue.offer(ticket) == Change([], [])
    order = []
    while True:
        admitted, _ = queue.leave(running)
        if not admitted:
            break
        (running,) = admitted
        order.append(running)
    assert order == [urgent, early, late]


def test_a_flood_of_one_key_does_not_keep_another_waiting() -> None:
    queue = FairQueue[Ticket](4, 100)
    flood = [Ticket("flood", 1) for _ in range(50)]
    for ticket in flood:
        queue.offer(ticket)
    quiet = [Ticket("quiet", 1) for _ in range(3)]
    for ticket in quiet:
        assert queue.offer(ticket) == Change([], [])
    # The next places are the quiet key's until both have as many.
    assert queue.leave(flood[0]) == Change([quiet[0]], [])
    assert queue.leave(flood[1]) == Change([quiet[1]], [])
    assert queue.leave(quiet[0]) == Change([quiet[2]], [])
    assert queue.leave(flood[2]) == Change([flood[4]], [])


def test_keys_take_turns_where_only_one_may_be_open() -> None:
    queue = FairQueue[Ticket](1, 100)
    queue.offer(running := Ticket("a", 1))
    for key in "aabbcc":
        queue.offer(Ticket(key, 1))
    order = ""
    while admitted := queue.leave(running).admitted:
        (running,) = admitted
        order += running.key
    assert order in ("bcabca", "cbacba", "bcacba", "cbabca")


def test_a_large_request_at_its_turn_is_not_passed_by_small_ones() -> None:
    queue = FairQueue[Ticket](4, 10)
    running = [Ticket("a", 1) for _ in range(4)]
    for ticket in running:
        queue.offer(ticket)
    large, small = Ticket("b", 3), Ticket("a", 1)
    queue.offer(large)
    queue.offer(small)
    assert queue.leave(running[0]).admitted == []
    assert queue.leave(running[1]).admitted == []
    assert queue.leave(running[2]).admitted == [large]
    assert queue.leave(running[3]).admitted == [small]


def test_one_that_gives_up_makes_way_for_those_that_it_held_back() -> None:
    queue = FairQueue[Ticket](4, 10)
    queue.offer(Ticket("a", 3))
    large, small = Ticket("b", 4), Ticket("c", 1)
    queue.offer(large)
    assert queue.offer(small) == Change([], [])
    assert queue.withdraw(large) == Change([small], [])


def test_a_full_queue_refuses_the_key_that_has_most_waiting() -> None:
    queue = FairQueue[Ticket](1, 4)
    queue.offer(Ticket("flood", 1))
    flood = [Ticket("flood", 1) for _ in range(4)]
    for ticket in flood:
        queue.offer(ticket)
    assert queue.offer(Ticket("other", 1)) == Change([], [flood[3]])
    assert queue.offer(Ticket("other", 1)) == Change([], [flood[2]])
    third = Ticket("other", 1)
    assert queue.offer(third) == Change([], [third]), "at a tie the newcomer goes"


def test_a_full_queue_refuses_the_worst_priority() -> None:
    queue = FairQueue[Ticket](1, 2)
    queue.offer(Ticket("a", 1))
    queue.offer(good := Ticket("a", 1, 0))
    queue.offer(bad := Ticket("b", 1, 3))
    worse = Ticket("c", 1, 4)
    assert queue.offer(worse) == Change([], [worse])
    better = Ticket("c", 1, 0)
    assert queue.offer(better) == Change([], [bad])
    assert queue.waiting == 2
    assert queue.withdraw(good) == Change([], [])


_TICKETS = st.builds(Ticket, st.sampled_from("abcd"), st.integers(1, 5), st.sampled_from([-1, 0, 0, 0, 2]))


@given(st.lists(_TICKETS, max_size=60), st.integers(5, 9), st.integers(0, 8), st.randoms(use_true_random=False))
def test_no_request_is_lost_and_no_room_is_left_unused(
    tickets: list[Ticket], capacity: int, max_waiting: int, chance: random.Random
) -> None:
    queue = FairQueue[Ticket](capacity, max_waiting)
    running: list[Ticket] = []
    waiting: list[Ticket] = []
    over: list[Ticket] = []

    def apply(change: Change[Ticket]) -> None:
        for ticket in change.admitted:
            waiting.remove(ticket)
            running.append(ticket)
        for ticket in change.refused:
            waiting.remove(ticket)
            over.append(ticket)
        assert queue.open == sum(ticket.generations for ticket in running) <= capacity
        assert queue.waiting == len(waiting) <= max_waiting
        for key in "abcd":
            assert queue.open_of(key) == sum(ticket.generations for ticket in running if ticket.key == key)
        # Who is first of the best priority does not fit.
        if waiting:
            best = min(ticket.priority for ticket in waiting)
            heads = {t.key: t for t in reversed(waiting) if t.priority == best}.values()
            assert any(queue.open + head.generations > capacity for head in heads)

    for ticket in tickets:
        waiting.append(ticket)
        apply(queue.offer(ticket))
        while running and chance.random() < 0.4:
            over.append(running.pop(chance.randrange(len(running))))
            apply(queue.leave(over[-1]))
        if waiting and chance.random() < 0.2:
            over.append(waiting.pop(chance.randrange(len(waiting))))
            apply(queue.withdraw(over[-1]))
    while running:
        over.append(running.pop(0))
        apply(queue.leave(over[-1]))
    assert not waiting
    assert Counter(over) == Counter(tickets)


@given(st.integers(2, 6), st.integers(1, 3), st.integers(0, 9), st.randoms(use_true_random=False))
def test_keys_that_always_want_more_get_equal_shares(keys: int, size: int, room: int, chance: random.Random) -> None:
    queue = FairQueue[Ticket](size + room, 10_000)
    running: list[Ticket] = []
    arrivals = [key for key in "abcdef"[:keys] for _ in range(200)]
    chance.shuffle(arrivals)
    for key in arrivals:
        running += queue.offer(Ticket(key, size)).admitted
    served: Counter[str] = Counter()
    for _ in range(150):
        # All are open for as long, so that shares are what the queue makes of them.
        ticket = running.pop(0)
        served[ticket.key] += 1
        running += queue.leave(ticket).admitted
    assert len(served) == keys
    # What was open before anyone had to wait is whoever's came first.
    assert max(served.values()) - min(served.values()) <= 2 + 2 * (size + room) // size
