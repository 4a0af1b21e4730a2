"""REST about one topic and what is in it. Handlers only; rules are in `region_node.topics`."""
