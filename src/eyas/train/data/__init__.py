"""Chats to packed batches of token ids, with what the model generated marked."""
