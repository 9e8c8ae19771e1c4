"""What is said of the predictions of a fit: compared with a constant and a linear model, memorised, or missed."""
