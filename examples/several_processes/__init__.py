"""A counter that several processes increase and wait for, over Redis or PostgreSQL.

[Its guide](README.md) goes through it.
"""
