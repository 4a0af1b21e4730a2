"""A ledger without a writer is fenced and closed where it ends."""
