"""Work of a bookie beside serving: deletion, refill, check. The only part that reads other bookies."""
