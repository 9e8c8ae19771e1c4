"""The error that pyrobnn raises for input it cannot use."""


class InputError(ValueError):
    """Raised before any work starts; the message says what came, what was expected and what to do."""
