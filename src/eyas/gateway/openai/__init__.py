"""OpenAI's APIs: Chat Completions, Completions, Responses, and what only they share."""
