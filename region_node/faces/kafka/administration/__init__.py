"""Kafka's requests about topics, their settings, and the cluster. A rule of a topic is never here."""
