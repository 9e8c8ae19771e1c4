"""What a fit is compared with: a constant, a linear model, and itself without an example."""
