"""Resumable streams of a language model's tokens, in FastAPI.

    python -m purgatory.uvicorn examples.llm_tokens.app:app

[Its guide](README.md) goes through it.
"""
