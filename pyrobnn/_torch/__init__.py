"""What the package needs of torch and Pyro beyond what they offer."""
