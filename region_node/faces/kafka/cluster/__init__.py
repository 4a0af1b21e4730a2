"""Topics, brokers, and settings as Kafka clients see them. No handlers."""
