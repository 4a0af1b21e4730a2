"""What one subscription or link has acknowledged. Values: they store nothing themselves."""
