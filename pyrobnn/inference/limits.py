"""Numbers that choose for a user, with the measurement behind each; numerical tolerances stand where they are used."""

# Mini-batches
MOST_AT_ONCE = 500  # examples in memory that a step of SVI sees all of
MOST_PRODUCTS_AT_ONCE = 20_000_000  # of a weight with an example, in such a step
BATCH = 128  # examples in a mini-batch of more

# The end of a fit of automatic length
FIRST_CYCLE = 2500  # steps
TOLERANCE = 5e-3  # nats an example that the fit may miss
SMALLEST_TOLERANCE = 0.05  # nats of all examples that any fit may miss
QUICK_FIT = 250  # examples below which a fit is quick, and may take longer for a smaller tolerance

# L-BFGS in place of stochastic steps to a mode
MOST_PRODUCTS_OF_LBFGS = 100_000_000  # of a weight with an example, in a pass over the data
MOST_WEIGHTS_OF_LBFGS = 1_000_000  # it keeps 40 numbers of each

# Structure of a covariance
MOST_FULL = 3_000  # weights with a joint covariance

# Measuring the open scales of priors and noise
MOST_MEASURED_ROWS = 500  # examples times outputs
FEWEST_MEASURED_ROWS = 100  # examples, for any number of outputs
MEASURING_SECONDS = 10.0  # predicted, at most
SMALLEST_PRIOR_SCALE = 0.05  # under which chains draw weights that the data do not need
LITTLE_GAIN = 0.05  # nats a row below a linear model: a mode that is further behind has learned nothing
MOST_DETERMINED = 0.8  # weights that the data determine, a share of the targets: beyond, few are left to tell the noise
MOST_NOISE_OF_A_GUIDE = 1.2  # in measured deviations: with 2 radial guides of a cubic are too wide
PRIOR_COUNTS = 5.0  # towards a prior scale of 1 without noise: the evidence of few labels or counts prefers wider
# Weights that the prior of a precision counts; the data alone would leave inputs out and follow the noise in others
FEW_ROW_COUNTS = 4.0  # for few real targets
ROWS_FOR_EACH_INPUT = 6  # from which rows of real targets are no longer few
LABEL_COUNTS = 2.0  # for labels and counts: 1 and 4 have a higher log loss on two moons, a plane and tumours
PRIOR_SHARE = 0.02  # mean square of counted weights, as a share of the declared variance
SHARE_OF_LINEAR_LABELS = 1.0  # the same share for linear models of labels, up to 0.09 nats an example worse at 0.02
NOISE_SHARE = 0.1  # mean square of counted targets, as a share of theirs: a fit that interpolates tells no noise
