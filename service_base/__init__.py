"""What each service is started with: its settings from flags, environment and file, its log, its socket and server.

No part of the stack: it imports none and knows no setting of theirs, and each part's image holds it.
"""
