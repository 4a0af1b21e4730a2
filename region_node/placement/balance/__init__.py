"""Load balancing: what each broker carries, where bundles go, and which of them move."""
