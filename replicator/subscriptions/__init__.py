"""Replicated subscriptions, by coordinate. Frames and timers are elsewhere."""
