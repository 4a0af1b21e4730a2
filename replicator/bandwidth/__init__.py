"""How much goes out: rates, windows, fair shares, compression. Leaves: they import nothing of the replicator."""
