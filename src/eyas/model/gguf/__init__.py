"""Export to GGUF for llama.cpp."""
