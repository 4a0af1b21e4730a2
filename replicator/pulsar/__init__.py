"""Links to real Apache Pulsar clusters. Frames between our regions are elsewhere."""
