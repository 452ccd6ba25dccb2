"""The networks: gpt-oss, the EAGLE-3 head, experts and rotary embeddings."""
