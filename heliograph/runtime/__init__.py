"""The ports to the machine. With the event loop, these are all that a simulator replaces."""
