"""The way back: cold reads, and whole topics restored."""
