"""A broker's ports for the replicator: clusters, schemas, subscriptions. A link's rule is never here."""
