"""Which bundle moves where, and which is split. It owns nothing itself."""
