"""Kafka's sockets: order of answers, dispatch, what connections share. It imports handlers; handlers should not
import it.
"""
