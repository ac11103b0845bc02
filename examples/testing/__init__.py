"""Tests of code that waits must not wait. [The guide](README.md) goes through them."""
