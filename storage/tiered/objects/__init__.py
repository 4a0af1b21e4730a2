"""What an object is: names, format, the stores that come with us. No topics."""
