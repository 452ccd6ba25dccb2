"""The fair queue: turns between clients, arrival within one, and who leaves a full one."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from eyas.router.manager.queue import FairQueue


@dataclass(eq=False)
class Item:
    client: str
    number: int


def queue_of(clients, max_length=100):
    queue = FairQueue(max_length)
    items = [Item(client, number) for number, client in enumerate(clients)]
    for item in items:
        queue.push(item)
    return queue, items


def served(queue):
    """All items, as a backend with one place would get them."""
    order = []
    while len(queue):
        order.append(next(queue.order()))
        queue.served(order[-1])
    return order


def test_clients_take_turns_and_arrival_counts_within_one():
    queue, _ = queue_of("aaabbc")
    assert [(item.client, item.number) for item in served(queue)] == [
        *(("a", 0), ("b", 3), ("c", 5)),
        *(("a", 1), ("b", 4)),
        ("a", 2),
    ]


def test_one_that_comes_back_stands_before_later_ones_of_its_client():
    queue, items = queue_of("aaa")
    queue.remove(items[0])
    queue.push(items[0])
    assert served(queue) == items


def test_a_client_that_leaves_the_queue_unserved_keeps_its_turn():
    queue, items = queue_of("aab")
    queue.remove(items[0])
    assert served(queue) == [items[1], items[2]]


def test_a_full_queue_drops_the_newest_of_who_has_most_in_it():
    queue, items = queue_of("aaab", max_length=4)
    assert queue.is_full
    assert queue.displaced_by("b") is items[2] and queue.displaced_by("new") is items[2]
    assert queue.displaced_by("a") is None
    queue.remove(items[2])
    queue.push(Item("b", 4))
    assert queue.displaced_by("b") is None, "both have as many"
    assert FairQueue(0).is_full and FairQueue(0).displaced_by("a") is None


@given(st.lists(st.tuples(st.sampled_from(["push", "served", "removed"]), st.sampled_from("abcd"), st.integers(0, 30))))
def test_each_client_gets_its_turn_whatever_comes_and_goes(steps):
    queue, waiting = FairQueue(1000), []
    turns = {}  # client -> clients that were served while it waited, since its own last turn
    for number, (what, client, index) in enumerate(steps):
        if what == "push":
            waiting.append(Item(client, number))
            queue.push(waiting[-1])
            turns.setdefault(client, [])
        elif waiting:
            item = next(queue.order()) if what == "served" else waiting[index % len(waiting)]
            getattr(queue, "served" if what == "served" else "remove")(item)
            waiting.remove(item)
            if what == "served":
                assert item.number == min([item.number, *(w.number for w in waiting if w.client == item.client)])
                turns[item.client] = []
                for other, others in turns.items():
                    if other != item.client:
                        others.append(item.client)
                        assert len(others) == len(set(others)), "no client comes twice while another waits"
            turns = {one: turns[one] for one in turns if any(item.client == one for item in waiting)}
        order = list(queue.order())
        assert sorted(item.number for item in order) == [item.number for item in waiting] and len(queue) == len(waiting)
    assert list(queue.order()) == served(queue)
