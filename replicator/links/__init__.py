"""A link's life: wait, connect, open, read, end. What is sent is decided in `sending`."""
