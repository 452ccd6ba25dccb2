"""Addresses and keys of servers, as people give them."""

import pytest

from eyas.base.errors import UserError
from eyas.base.serving.address import address, bearer


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://box:8000/v1/", "http://box:8000"),
        ("https://box.example/eyas/v1", "https://box.example/eyas"),
        (" http://[::1]:8000/ ", "http://[::1]:8000"),
    ],
)
def test_an_address_with_or_without_v1(text, url):
    assert address(text) == url


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1:8000", "box", "ftp://box", "http://", "http://me:pass@box", "http://b?q=1", "http://[:"]
)
def test_what_is_no_address(text):
    with pytest.raises(ValueError, match=r"wants a URL such as") as caught:
        address(text)
    assert "pass" not in str(caught.value)


def test_a_key_as_a_header():
    assert bearer(None) == {} and bearer("k-1") == {"authorization": "Bearer k-1"}


@pytest.mark.parametrize("key", ["", "a b", "s3cret\n", "schl\u00fcssel"])
def test_a_key_that_no_header_can_hold(key):
    with pytest.raises(UserError, match=r"the API key must be printable ASCII") as caught:
        bearer(key)
    assert not key.strip() or key.strip() not in str(caught.value)
