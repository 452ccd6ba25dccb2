"""Pages of one group against a plain model, step by step, and the keys that find them."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eyas.engine.sequences.pages import PagePool, page_keys

NUM_PAGES = 5
KEYS = st.sampled_from([bytes([letter]) for letter in b"abcd"])
TOKENS = st.lists(st.integers(0, 3), max_size=20)


class PoolMachine(RuleBasedStateMachine):
    """The model: holders of each page, key of each page, and keyed pages without holders: unwanted ones, others."""

    def __init__(self):
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.holders = dict.fromkeys(range(1, NUM_PAGES + 1), 0)
        self.key_of = {}
        self.queues = ([], [])

    def held(self, data):
        return data.draw(st.sampled_from(sorted(page for page, count in self.holders.items() if count)))

    @property
    def idle(self):
        """In the order in which they are taken."""
        return self.queues[0] + self.queues[1]

    def leave_idle(self, page):
        for queue in self.queues:
            queue[:] = [other for other in queue if other != page]

    @property
    def num_free(self):
        return sum(count == 0 for count in self.holders.values())

    @precondition(lambda self: self.num_free)
    @rule()
    def allocate(self):
        page = self.pool.allocate()
        assert self.holders[page] == 0
        if self.num_free > len(self.idle):
            assert page not in self.idle, "a findable page was taken while another was free"
        else:
            assert page == self.idle[0], "not the oldest of the unwanted, or of all"
            self.leave_idle(page)
            del self.key_of[page]
        self.holders[page] = 1

    @rule(key=KEYS)
    def find_and_hold(self, key):
        page = self.pool.find(key)
        assert page == next((page for page, owned in self.key_of.items() if owned == key), None)
        if page is not None:
            assert self.pool.is_idle(page) == (page in self.idle)
            self.pool.hold(page)
            self.holders[page] += 1
            self.leave_idle(page)

    @precondition(lambda self: any(self.holders.values()))
    @rule(data=st.data(), is_wanted=st.booleans())
    def release(self, data, is_wanted):
        page = self.held(data)
        self.pool.release(page, is_wanted=is_wanted)
        self.holders[page] -= 1
        if not self.holders[page] and page in self.key_of:
            self.queues[is_wanted].append(page)

    @precondition(lambda self: any(self.holders.values()))
    @rule(data=st.data(), key=KEYS)
    def publish(self, data, key):
        page = self.held(data)
        self.pool.publish(page, key)
        if key not in self.key_of.values():
            self.key_of.setdefault(page, key)

    @rule(key=KEYS)
    def unpublish(self, key):
        self.pool.unpublish(key)
        assert self.pool.find(key) is None
        page = next((page for page, owned in self.key_of.items() if owned == key), None)
        self.key_of.pop(page, None)
        self.leave_idle(page)

    @invariant()
    def agrees(self):
        self.pool.check()
        assert self.pool.num_available == self.num_free
        assert self.pool.num_held == NUM_PAGES - self.num_free


TestPagePool = PoolMachine.TestCase
TestPagePool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(TOKENS, TOKENS, st.integers(1, 6))
def test_keys_are_equal_exactly_where_prefixes_are(a, b, page_size):
    keys_a, keys_b = page_keys(a, page_size), page_keys(b, page_size)
    assert len(keys_a) == len(a) // page_size
    for index, (key_a, key_b) in enumerate(zip(keys_a, keys_b, strict=False)):
        end = (index + 1) * page_size
        assert (key_a == key_b) == (a[:end] == b[:end])


@given(TOKENS.filter(bool), st.integers(1, 6))
def test_keys_depend_on_salt_and_on_whole_pages_alone(tokens, page_size):
    keys = page_keys(tokens, page_size)
    assert len(set(keys)) == len(keys)
    assert page_keys(tokens[: len(keys) * page_size], page_size) == keys
    assert not set(page_keys(tokens, page_size, b"salt")) & set(keys)


def test_a_salt_that_looks_like_tokens_meets_no_key():
    tokens, page_size = list(range(65, 97)), 4
    keys = page_keys(tokens, page_size)
    for cut in (4, 8):
        salt = b"".join(token.to_bytes(8, "little") for token in tokens[:cut])
        assert not set(page_keys(tokens[cut:], page_size, salt)) & set(keys)
