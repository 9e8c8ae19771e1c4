"""The captured step: model, guide, ELBO, gradient and update recorded once as one graph, and run without Python."""
