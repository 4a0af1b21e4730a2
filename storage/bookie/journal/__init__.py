"""What makes an add durable: records, their sync, their replay. It knows no frame of a client."""
