"""One loaded topic: producers, subscriptions, positions, statistics. No frames, no owner."""
