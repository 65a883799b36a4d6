"""Sizes and times of the connection to Triton, each with its reason."""

MAX_HEAD_BYTES = 64 * 1024  # A status line and a few headers; more is not a Triton.
MAX_EVENT_BYTES = 16 * 1024 * 1024  # Far above any response; without a limit a broken peer could fill the memory.
READ_AHEAD_BYTES = 64 * 1024  # Past this the socket is not read, so that a slow client costs no memory.
EVENTS_AT_ONCE = 128  # What is made of one read for a client that may not take it.
IDLE_CONNECTIONS = 256  # Kept open per instance; a connection more costs one handshake.
ADDRESS_SECONDS = 30.0  # What a name stands for is found out anew then: a Triton may come back elsewhere.
IDLE_SECONDS = 2.0  # Then closed: one without a request holds tritonserver up at its shutdown, for 30 s.
