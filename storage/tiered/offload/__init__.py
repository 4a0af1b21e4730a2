"""The way out: which ledgers go, their upload, manifests, and deletion of what nobody names."""
