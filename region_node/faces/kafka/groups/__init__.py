"""Consumer groups and committed offsets. The group itself is a pure core."""
