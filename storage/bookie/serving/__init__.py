"""A bookie's answers to frames, and its registration. Format and files are below."""
