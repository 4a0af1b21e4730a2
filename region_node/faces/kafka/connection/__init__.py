"""Kafka's sockets: order of answers, dispatch. It imports handlers, which take a session and never import it."""
