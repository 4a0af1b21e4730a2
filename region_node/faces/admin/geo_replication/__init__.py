"""REST about other regions and clusters and the links to them. Links and audits are in `replicator`."""
