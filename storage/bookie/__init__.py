"""One bookie: settings and counters that all its parts share. Quorums are the ledger's business."""
