"""One thread at a time: random states, Pyro's handlers and settings, and swapped weights belong to the process."""

import threading

ONE_THREAD = threading.RLock()
"""Held wherever one of these is used, so that threads may predict, and fit, side by side: they take turns."""
