"""The `spanalloc` command: run a program on spanalloc, compare allocators, list what is there."""

VERSION = "0.2.0"
