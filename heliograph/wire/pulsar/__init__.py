"""Pulsar's protocol as bytes. It knows neither Kafka's protocol nor links."""
