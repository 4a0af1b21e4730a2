"""Quotas of Kafka's clients. Rates of topics are in `region_node.topics.limits`."""
