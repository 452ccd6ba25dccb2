"""The OpenAI dialect: chat, completions, tokenize."""
