"""Pages of one group: reference counts and the prefix cache.

A page id is an index into every cache tensor of its group. Page 0 is a scratch page: dead rows write there. A keyed
page without references stays in the prefix cache until its memory is needed: pages that are unlikely to be reused are
evicted first, then the oldest. This file knows no tensors.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["PageKey", "PagePool", "page_keys"]

PageKey = bytes


def page_keys(token_ids: Sequence[int], page_size: int, salt: bytes = b"") -> list[PageKey]:
    """Return a key for each full page of a prompt: a digest of all tokens up to the page's end, keyed by the salt."""
    # Hashed instead of prefixed: a salt that looks like tokens must not collide with the keys of a longer prompt.
    keys, digest = [], hashlib.blake2b(digest_size=16, key=hashlib.blake2b(salt).digest() if salt else b"")
    for start in range(0, len(token_ids) - page_size + 1, page_size):
        digest.update(array("q", token_ids[start : start + page_size]).tobytes())
        keys.append(digest.digest())
    return keys


class PagePool:
    """Reference-counted page ids 1 .. num_pages; a keyed page stays findable after its release."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages, 0, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # keyed, without references, oldest first
        self._evict_first: OrderedDict[int, None] = OrderedDict()  # the same, evicted before those
        self._holders: dict[int, int] = {}
        self._key_of: dict[int, PageKey] = {}
        self._page_of: dict[PageKey, int] = {}

    @property
    def num_available(self) -> int:
        """The number of pages that `allocate` can hand out, idle ones in the prefix cache included."""
        return len(self._free) + self.num_idle

    @property
    def num_held(self) -> int:
        return len(self._holders)

    @property
    def num_idle(self) -> int:
        return len(self._idle) + len(self._evict_first)

    def allocate(self) -> int:
        """Return a page with one reference; evicts an idle one if none is free. Check `num_available` first."""
        if self._free:
            page = self._free.pop()
        else:
            page, _ = (self._evict_first or self._idle).popitem(last=False)
            del self._page_of[self._key_of.pop(page)]
        self._holders[page] = 1
        return page

    def find(self, key: PageKey) -> int | None:
        return self._page_of.get(key)

    def is_idle(self, page: int) -> bool:
        return page in self._idle or page in self._evict_first

    def hold(self, page: int) -> None:
        """Add one reference to a found page."""
        self._idle.pop(page, None)
        self._evict_first.pop(page, None)
        self._holders[page] = self._holders.get(page, 0) + 1

    def release(self, page: int, *, is_wanted: bool = True) -> None:
        """Drop one reference to a page. Without `is_wanted` a keyed page is evicted before the others."""
        self._holders[page] -= 1
        if self._holders[page]:
            return
        del self._holders[page]
        if page in self._key_of:
            (self._idle if is_wanted else self._evict_first)[page] = None
        else:
            self._free.append(page)

    def publish(self, page: int, key: PageKey) -> None:
        """Make a held page findable by `key`; the first page with a key stays the one that is found."""
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def unpublish(self, key: PageKey) -> None:
        """Remove the page with this key from the prefix cache."""
        page = self._page_of.pop(key, None)
        if page is not None:
            del self._key_of[page]
            for idle in (self._idle, self._evict_first):
                if page in idle:
                    del idle[page]
                    self._free.append(page)

    def check(self) -> None:
        """Assert that every page is free, idle or held, exactly once, and that keys and pages match."""
        free, idle, held = set(self._free), set(self._idle) | set(self._evict_first), set(self._holders)
        assert len(free) == len(self._free) and len(idle) == self.num_idle
        assert not free & idle and not free & held and not idle & held
        assert free | idle | held == set(range(1, self.num_pages + 1))
        assert all(count > 0 for count in self._holders.values())
        assert {page: key for key, page in self._page_of.items()} == self._key_of
        assert idle <= set(self._key_of)
        assert not free & set(self._key_of)
