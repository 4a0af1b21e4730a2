"""Produce, Fetch, ListOffsets, DeleteRecords: the hot path of Kafka's face."""
