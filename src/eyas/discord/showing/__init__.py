"""Shows answers in channels: messages, edits, reactions, buttons. Only it and `bot` import discord.py."""
