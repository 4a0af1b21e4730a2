"""What every admin call has: who asks, its right, record, and context, its way to others. It imports no resource."""
