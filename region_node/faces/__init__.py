"""What clients speak to: Pulsar's protocol, Kafka's, and REST. They never import each other; a rule of a topic is
never here.
"""
