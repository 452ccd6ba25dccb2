"""The browser of the gateway's page tests, for the page of the local Discord."""

from tests.gateway.page.conftest import browser, open_page, shot

__all__ = ["browser", "open_page", "shot"]
