"""What is refused or slowed: rates, limits, shares of resource groups. It loads nothing."""
