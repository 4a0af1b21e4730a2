"""An instance's plan as values: nodes, ports, growth. It starts nothing."""
