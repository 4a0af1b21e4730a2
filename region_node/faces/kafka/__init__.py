"""Kafka's protocol, on the same topics, cursors, and ownership as Pulsar's."""
