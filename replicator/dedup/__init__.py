"""Which sequences and coordinates are here already. Cores."""
