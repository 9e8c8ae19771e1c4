"""Extensions of torch and Pyro that the package needs."""
