"""Numbers that choose for a user, with the measurement behind each; numerical tolerances stand where they are used."""

MOST_AT_ONCE, MOST_PRODUCTS_AT_ONCE = 500, 20_000_000
"""Examples in memory that a step of SVI sees all of, and products of a weight with an example that it may take."""
BATCH = 128
"""Examples in a mini-batch of more."""

FIRST_CYCLE = 2500
"""Steps of the first cycle of a fit that ends by itself."""
USUAL_STEPS, USUAL_STEPS_TO_MODE = 40_000, 12_000
"""Expected steps of a fit of automatic length, and of a fit that seeks a mode: medians on ten problems."""
TOLERANCE, SMALLEST_TOLERANCE = 5e-3, 0.05
"""Nats an example that a fit which ends by itself may miss, and nats."""
QUICK_FIT = 250
"""Examples below which a fit is quick, and may take longer for a smaller tolerance."""

MOST_PRODUCTS_OF_LBFGS, MOST_WEIGHTS_OF_LBFGS = 100_000_000, 1_000_000
"""Limits for L-BFGS in place of stochastic steps in seeking a mode: products of a weight with an example in a pass over
the data, and weights (40 numbers are kept of each)."""

MOST_FULL, MOST_KRON = 3_000, 1_000_000
"""Most weights with a joint covariance, and with Kronecker factors; above that, only the last layer's."""

MOST_MEASURED_ROWS, FEWEST_MEASURED_ROWS, MEASURING_SECONDS = 500, 100, 10.0
"""Examples at which open scales are measured, and the limit on the predicted seconds of this measurement."""
SMALLEST_PRIOR_SCALE = 0.05
"""Prior scale of weights that the data do not need, so that chains can still move."""
MOST_INPUTS_OF_STAND_IN, STAND_IN = 1000, (50,)
"""Inputs and hidden units of the network that measures the noise in place of the model's network."""
LITTLE_GAIN = 0.05
"""Nats a row above a constant: less is no sign that a mode has learned anything."""
MOST_DETERMINED = 0.8
"""Weights that the data determine, as a share of the targets, beyond which few are left to tell the noise by."""
PRIOR_COUNTS = 5.0
"""Counts towards a prior scale of 1, for likelihoods without noise: the evidence of few labels or counts alone prefers
a prior that is too wide."""
FEW_ROW_COUNTS, ROWS_FOR_EACH_INPUT = 4.0, 6
"""Weights that the prior of a precision counts for few real targets, and rows per input that are no longer few. The
data alone would leave some inputs out and follow the noise in others."""
LABEL_COUNTS = 2.0
"""The same for labels and counts, of which any number of rows is few: 1 and 4 have a higher log loss on two moons, a
plane and tumours."""
PRIOR_SHARE, SHARE_OF_LINEAR_LABELS, NOISE_SHARE = 0.02, 1.0, 0.1
"""Mean square of counted weights, as a share of the declared variance, and of counted targets, as a share of theirs.
Weights that interpolate a few rows leave nothing to tell the noise by, and the noise then falls to its least value.
With a share of 0.02 a linear model of labels is up to 0.09 nats an example worse."""

MOST_SAMPLED = 30_000
"""Weights times examples up to which `Automatic` tries chains, which end in time; above it, an ensemble."""
FEW_ROWS = 200
FOLDS_OF_FEW, FOLDS = (4, 2), (5, 1)
"""Number of folds of `Automatic`, and number of folds held out in turn, for few rows and for more."""
CANDIDATE_SECONDS, FEWEST_COMPARED_STEPS = 60.0, 10_000
"""Predicted seconds after which a candidate of `Automatic` stops, and steps in that time below which none is compared:
three candidates and the fit to all data would take minutes."""
SECONDS_OF_LONG_STEPS, BATCH_OF_LONG_STEPS = 15.0, 32
"""Predicted seconds of the ensemble that is taken then, and examples in its mini-batches."""
FEWEST_LONG_STEPS, MOST_LONG_STEPS, FEWEST_EPOCHS = 800, 2_000, 3
"""Steps of each of its members, and passes over the data. Longer members come before more of them."""
TEMPERATURE_OF_MODES = 0.03
"""Factor on the log prior "he" of its members: 1,000 digits have a log score of -0.38 under 1, of -0.23 here."""

MOST_EVIDENCE_ROWS = {"regression": 500, "classification": 100}
"""Rows up to which estimators take the evidence framework if chains are out: its cost grows with the square of rows
times outputs."""
MOST_EVIDENCE_LABELS, FEWEST_ROWS_OF_CLASSES, FEWEST_FOR_AN_INPUT = 1_000, 200, 20
"""The same, times classes less one. Three classes or more take it only beyond so many rows, and so many for each
input: where fewer rows tell classes apart, a mean-field guide that is trained from the start is ahead."""
MOST_ROWS_OF_SHORT_EVIDENCE = 2_000
"""Rows up to which noise that is not Gaussian is measured by one start of the evidence framework, in 3 to 20 s. The
marginal likelihood tunes no such noise, and networks then memorise the targets."""
MOST_SAMPLED_ROWS, MOST_SAMPLED_NUMBERS, MOST_SAMPLED_UNITS = 100, 3_000, 100
"""Rows, numbers of all inputs, and hidden units up to which the chains of an estimator take 3 to 20 s."""
MOST_SAMPLED_ROWS_OF_ANY_PRIOR = 200
"""The same rows under a prior that is not normal, where a mean-field guide mostly ends at a linear model."""
ROWS_OF_WIDE = 2
"""Rows for each input up to which a table counts as wide. If most inputs do not matter, a precision per input leaves
these out, unlike a chain under one scale."""

FEWEST_ROWS_OF_DENSITY, LEAST_GAIN_OF_DENSITY = 300, 0.02
"""Rows from which estimators compare likelihoods, and nats a row that another must gain."""
