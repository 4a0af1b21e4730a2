"""REST about transactions, and ends that an operator decides."""
