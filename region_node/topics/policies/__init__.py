"""What policies say of a topic, and their effect on it."""
