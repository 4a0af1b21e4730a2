"""Our own clients: for links, canaries, and Spark. Applications use the official Pulsar and Kafka clients."""
