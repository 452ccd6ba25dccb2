"""OpenAI's APIs: Chat Completions, Completions, Responses, and the parts that only they share."""
