"""The part that talks to Discord: the only files that import discord.py."""
