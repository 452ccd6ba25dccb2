"""The pause that a server asks for, in each of the forms that it may have."""

import time
from email.utils import formatdate

import pytest

from eyas.base.serving.retry_after import retry_after_s


@pytest.mark.parametrize(("headers", "seconds"), [
    ({}, None), ({"retry-after": "7"}, 7.0), ({"retry-after": " 0.5 "}, 0.5), ({"retry-after-ms": "250"}, 0.25),
    ({"retry-after": "9", "retry-after-ms": "10"}, 0.01), ({"retry-after": "-3"}, None), ({"retry-after": "nan"}, None),
    ({"retry-after": "inf"}, None), ({"retry-after": "soon"}, None),
    ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0), ({"retry-after": "Mon, 1 Jan 0001 00:00:00 -0000"}, 0.0),
    ({"retry-after": "Wed, 21 Oct 99999999999999999999 07:28:00 GMT"}, None), ({"retry-after": "1e999"}, None),
    ({"retry-after": "9" * 300}, 1e9), ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, 1e9),
])  # fmt: skip
def test_what_servers_send(headers, seconds):
    assert retry_after_s(headers) == seconds


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland"])
def test_a_date_is_in_utc_wherever_we_are(zone, monkeypatch):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for form in (formatdate(time.time() + 30, usegmt=True), formatdate(time.time() + 30)):
            assert 28 < retry_after_s({"retry-after": form}) <= 30
    finally:
        monkeypatch.undo()
        time.tzset()
