"""Which entries a query reads, and how a task reads them. It writes nothing."""
