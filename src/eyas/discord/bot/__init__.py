"""The bot on Discord: events in, answers out. Only it and `showing` import discord.py."""
