"""Readers of a language model's answer lose their connections, and must resume it where they were.

    python -m purgatory.uvicorn examples.llm_tokens.app:app

[Its guide](README.md) goes through it.
"""
