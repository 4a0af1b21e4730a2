"""Which transactions are open, and their way to the end."""
