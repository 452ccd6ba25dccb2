"""Pages of one group: who holds which, and which past pages can be shared.

A page id is an index into every cache tensor of its group. Page 0 belongs to nobody: dead rows write there. A page that
nobody holds any more stays findable by its key until its memory is needed: those that are hardly wanted first, then the
oldest. Knows no tensors.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["PageKey", "PagePool", "page_keys"]

PageKey = bytes


def page_keys(token_ids: Sequence[int], page_size: int, salt: bytes = b"") -> list[PageKey]:
    """One key for each full page of a prompt: a digest of all tokens up to the page's end, keyed by the salt."""
    # Hashed, not put in front: a salt that looks like tokens must not meet the keys of a longer prompt.
    keys, digest = [], hashlib.blake2b(digest_size=16, key=hashlib.blake2b(salt).digest() if salt else b"")
    for start in range(0, len(token_ids) - page_size + 1, page_size):
        digest.update(array("q", token_ids[start : start + page_size]).tobytes())
        keys.append(digest.digest())
    return keys


class PagePool:
    """Reference-counted page ids 1 .. num_pages; releasing a keyed page keeps it findable."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages, 0, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # keyed, held by nobody, oldest first
        self._unwanted: OrderedDict[int, None] = OrderedDict()  # the same, taken before those
        self._holders: dict[int, int] = {}
        self._key_of: dict[int, PageKey] = {}
        self._page_of: dict[PageKey, int] = {}

    @property
    def num_available(self) -> int:
        """Pages that `allocate` can hand out, findable idle ones included."""
        return len(self._free) + self.num_idle

    @property
    def num_held(self) -> int:
        return len(self._holders)

    @property
    def num_idle(self) -> int:
        return len(self._idle) + len(self._unwanted)

    def allocate(self) -> int:
        """A page held once; takes an idle one when no page is free. The caller checks `num_available`."""
        if self._free:
            page = self._free.pop()
        else:
            page, _ = (self._unwanted or self._idle).popitem(last=False)
            del self._page_of[self._key_of.pop(page)]
        self._holders[page] = 1
        return page

    def find(self, key: PageKey) -> int | None:
        return self._page_of.get(key)

    def is_idle(self, page: int) -> bool:
        return page in self._idle or page in self._unwanted

    def hold(self, page: int) -> None:
        """Hold a found page once more."""
        self._idle.pop(page, None)
        self._unwanted.pop(page, None)
        self._holders[page] = self._holders.get(page, 0) + 1

    def release(self, page: int, *, is_wanted: bool = True) -> None:
        """Hold a page once less. `is_wanted` says whether somebody may well look for it, if it is findable."""
        self._holders[page] -= 1
        if self._holders[page]:
            return
        del self._holders[page]
        if page in self._key_of:
            (self._idle if is_wanted else self._unwanted)[page] = None
        else:
            self._free.append(page)

    def publish(self, page: int, key: PageKey) -> None:
        """Make a held page findable; the first page with a key stays the one that is found."""
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def unpublish(self, key: PageKey) -> None:
        """Let no page be found by `key` any more."""
        page = self._page_of.pop(key, None)
        if page is not None:
            del self._key_of[page]
            for idle in (self._idle, self._unwanted):
                if page in idle:
                    del idle[page]
                    self._free.append(page)

    def check(self) -> None:
        """Assert that every page is free, idle or held, exactly once, and that keys and pages match."""
        free, idle, held = set(self._free), set(self._idle) | set(self._unwanted), set(self._holders)
        assert len(free) == len(self._free) and len(idle) == self.num_idle
        assert not free & idle and not free & held and not idle & held
        assert free | idle | held == set(range(1, self.num_pages + 1))
        assert all(count > 0 for count in self._holders.values())
        assert {page: key for key, page in self._page_of.items()} == self._key_of
        assert idle <= set(self._key_of)
        assert not free & set(self._key_of)
