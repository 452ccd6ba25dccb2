"""The page at / and the feed of its live view."""
