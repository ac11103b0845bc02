"""Tests in virtual time. [The guide](README.md) goes through them."""
