"""Why a step cannot be captured."""


class NotCapturable(Exception):
    """The step cannot run as a recorded graph; the message says why, and the fit goes on without."""
