"""How Kafka's clients sign in, and ACLs. Rights themselves are in `region_node.security`."""
