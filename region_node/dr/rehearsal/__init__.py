"""What a drill measures with: a shadow's topics, and what publishing costs the namespace meanwhile."""
