"""Which brokers may serve which namespace."""
