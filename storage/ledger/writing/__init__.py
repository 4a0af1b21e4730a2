"""The single writer of a ledger: append, acknowledgement, replacement of a bookie, creation."""
