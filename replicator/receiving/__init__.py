"""The target's half of links. It never imports the sender's core."""
