"""What a role may do with a topic, and what the faces ask."""
