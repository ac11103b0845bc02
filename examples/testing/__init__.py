"""Tests of operations in virtual time. [The guide](README.md) goes through them."""
