"""The shared vocabulary: names, positions, coordinates, metadata, policies, errors. Values only, no I/O."""
