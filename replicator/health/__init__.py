"""What links show of themselves: causes, numbers, clocks, traces. They steer nothing."""
