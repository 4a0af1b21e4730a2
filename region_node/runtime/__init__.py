"""What all parts of a region stand on: ports, logs, request ids. It imports nothing of region_node."""
