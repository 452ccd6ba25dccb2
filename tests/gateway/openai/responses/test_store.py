"""The store of responses against a simple model of it: limits, owners, and chains that share what they hold."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from eyas.gateway.openai.responses.store import Kept, ResponseStore

OWNERS = st.sampled_from([b"", b"a", b"b"])
MAX_RESPONSES, MAX_BYTES, TTL_S = 5, 100, 60.0


def kept(response_id, *, owner=b"", size=10, previous=None, item_ids=()):
    return Kept(
        response_id=response_id,
        owner=owner,
        status="completed",
        input_items=b"",
        response=b"x" * size,
        item_ids=item_ids,
        previous=previous,
    )


class AgainstAModel(RuleBasedStateMachine):
    """The model keeps a list, and counts bytes by walking every chain anew."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.store = ResponseStore(
            max_responses=MAX_RESPONSES, max_bytes=MAX_BYTES, ttl_s=TTL_S, clock=lambda: self.now
        )
        self.model: list[list] = []  # [response, last use], least recently used first
        self.num_made = 0

    def reached(self):
        return {link for response, _ in self.model for link in response.chain()}

    def trim(self):
        def is_beyond():
            too_large = sum(link.num_bytes for link in self.reached()) > MAX_BYTES
            return len(self.model) > MAX_RESPONSES or too_large or self.model[0][1] < self.now - TTL_S

        while self.model and is_beyond():
            del self.model[0]

    @rule(owner=OWNERS, size=st.integers(1, 60), choice=st.integers(0, 9))
    def put(self, owner, size, choice):
        previous = self.model[choice][0] if choice < len(self.model) else None
        self.num_made += 1
        name = f"r{self.num_made}"
        response = kept(name, owner=owner, size=size, previous=previous, item_ids=(f"i{name}",))
        self.store.put(response)
        self.model.append([response, self.now])
        self.trim()

    @rule(owner=OWNERS, number=st.integers(1, 30), by_item=st.booleans())
    def get(self, owner, number, by_item):
        self.trim()
        entry = next((entry for entry in self.model if entry[0].response_id == f"r{number}"), None)
        expected = entry[0] if entry is not None and entry[0].owner == owner else None
        if expected is not None:
            self.model.remove(entry)
            self.model.append([expected, self.now])
        found = self.store.find_item(f"ir{number}", owner) if by_item else self.store.get(f"r{number}", owner)
        assert found is expected

    @rule(owner=OWNERS, number=st.integers(1, 30))
    def delete(self, owner, number):
        self.trim()
        entry = next((entry for entry in self.model if entry[0].response_id == f"r{number}"), None)
        is_theirs = entry is not None and entry[0].owner == owner
        assert self.store.delete(f"r{number}", owner) == is_theirs
        if is_theirs:
            self.model.remove(entry)

    @rule(seconds=st.floats(0, 40))
    def wait(self, seconds):
        self.now += seconds

    @invariant()
    def counts_agree(self):
        assert len(self.store) == len(self.model) <= MAX_RESPONSES
        assert self.store.num_bytes == sum(link.num_bytes for link in self.reached()) <= MAX_BYTES


AgainstAModel.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestAgainstAModel = AgainstAModel.TestCase


def test_a_later_response_holds_on_to_what_is_no_longer_found():
    store = ResponseStore()
    first = kept("first")
    second = kept("second", previous=first)
    store.put(first)
    store.put(second)
    assert store.delete("first", b"") and store.get("first", b"") is None
    assert store.get("second", b"").chain() == [first, second] and store.num_bytes == 20
    assert store.delete("second", b"") and store.num_bytes == 0


def test_what_is_too_large_alone_is_not_kept():
    store = ResponseStore(max_bytes=9)
    store.put(kept("large"))
    assert store.get("large", b"") is None and store.num_bytes == 0


def test_long_conversations_are_let_go_without_recursion():
    store = ResponseStore(max_responses=1)
    last = None
    for number in range(5000):
        last = kept(str(number), size=1, previous=last)
        store.put(last)
    assert store.num_bytes == 5000 and len(store.get("4999", b"").chain()) == 5000
    del last
    assert store.delete("4999", b"") and store.num_bytes == 0


def test_owners_cannot_take_each_others_item_ids():
    store = ResponseStore()
    mine = kept("mine", owner=b"a", item_ids=("item",))
    store.put(mine)
    store.put(kept("theirs", owner=b"b", item_ids=("item",)))
    assert store.find_item("item", b"a") is mine
    store.delete("theirs", b"b")
    assert store.find_item("item", b"a") is mine and store.find_item("item", b"b") is None
