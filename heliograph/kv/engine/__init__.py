"""Where a table's rows lie: in memory, in layers above LMDB, in images. It knows rows and batches, and no command."""
