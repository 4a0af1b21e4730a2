"""The HTTP listener, all routes, their description, and the console's pages. It handles no resource itself."""
