"""What is stored of a topic in the metadata, and when it is written. No entries."""
