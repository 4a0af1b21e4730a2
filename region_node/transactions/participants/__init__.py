"""Topics and subscriptions as parts of a transaction. No coordinator is imported."""
