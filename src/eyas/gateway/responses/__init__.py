"""The Responses dialect: items, events and a bounded store of conversations."""
