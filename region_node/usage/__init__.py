"""What tenants use: counted, kept by day, limited."""
