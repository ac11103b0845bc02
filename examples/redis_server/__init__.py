"""A server of Redis's protocol with blocking commands, and its memory."""
