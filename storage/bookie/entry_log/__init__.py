"""Blocks on disk, sorted by ledger: written, read, compacted, scrubbed. It decides no frame and no start."""
