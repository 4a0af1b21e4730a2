"""What a client is to the broker, and what all of them share: sign-in, sessions, fetch sessions. No socket."""
