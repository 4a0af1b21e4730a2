"""Kafka's protocol as bytes, and entries converted between both protocols. It may use Pulsar's; decisions are in the
face.
"""
