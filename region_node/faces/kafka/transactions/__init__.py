"""Transactional and idempotent ids of Kafka. What readers see of a transaction is decided in `replicator.log`."""
