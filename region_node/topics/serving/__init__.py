"""All topics of a broker: loaded, found, listed, deleted."""
