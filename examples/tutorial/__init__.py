"""A long-poll endpoint in five steps, each of which is a program."""
