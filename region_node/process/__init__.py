"""One process of a region: settings, then roles. The only place that builds and connects objects."""
