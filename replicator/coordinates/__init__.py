"""By origin: where entries lie, what is missing, and why. Leaves."""
