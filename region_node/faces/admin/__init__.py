"""The admin REST interface of a broker: Pulsar's paths, and our own below /heliograph/v1."""
