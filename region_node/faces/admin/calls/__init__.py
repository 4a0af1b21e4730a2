"""What every admin call has: who asks, its right, its record, its context. It imports no resource."""
