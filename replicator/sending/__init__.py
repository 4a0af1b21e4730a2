"""The core of what a link sends, repeats, and skips. No I/O."""
