"""What predictions of classes have beside those of numbers: probabilities, labels and entropies."""

import torch
from torch import Tensor
from torch.distributions import Categorical

from pyrobnn.posterior.outcomes import MOST_OUTCOMES, listed_entropy, num_samples, sampled_information
from pyrobnn.posterior.rows import Rows


class OfClasses(Rows):
    """Distributions of targets for each draw and input, which may be classes; for other targets these quantities raise.

    Raises:
        InputError: targets that are no classes.
    """

    @property
    def mean(self) -> Tensor:
        """The mean of the mixture, of classes their probabilities."""
        raise NotImplementedError

    @property
    def class_probs(self) -> Tensor:
        """Probabilities of the classes under the mixture, (N, C); for Bernoulli targets C = 2, (N, K, 2).

        Examples:
            >>> from pyro.distributions import Categorical
            >>> prediction = bnn.Prediction(Categorical(probs=torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]])))  # two draws
            >>> prediction.class_probs
            tensor([[0.7000, 0.3000]])
        """
        self._require_classes("Class probabilities")
        mean = self.mean
        return torch.stack([1 - mean, mean], -1) if self._is_binary else mean / mean.sum(-1, keepdim=True)

    @property
    def label(self) -> Tensor:
        """The most probable class, (N,), (N, K) for Bernoulli targets, or (N, *positions)."""
        return self.class_probs.argmax(-1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the mixture in nats, (N,): total uncertainty about the class.

        Several target columns have the entropy of all of them jointly, not the sum over columns: draws tie them
        together. Where they have more than 1024 joint outcomes (more than ten binary columns), it is the entropy given
        the weights plus `mutual_information`. `by_target` has the entropy of each.
        """
        self._require_classes("Entropy")
        if self._num_outcomes > MOST_OUTCOMES:
            return self._entropy_given_weights() + self.mutual_information
        if not self.distribution.event_shape:
            return torch.special.entr(self.class_probs).sum(-1)
        return self.by_rows(lambda part: listed_entropy(part._column_probs()), width=self._num_outcomes)

    @property
    def mutual_information(self) -> Tensor:
        """Information in nats that the class would give about the weights (BALD, Houlsby et al. 2011), (N,).

        The entropy of the mixture less the mean entropy of its components: epistemic uncertainty, log S at most.
        Several target columns count jointly. With more than 1024 joint outcomes, it is the mean of log p(y | w_s) - log
        p(y) over targets y drawn from each draw w_s. These are 1000 targets in all, or S if S is larger, with the same
        random numbers for every input.

        Examples:
            >>> from pyro.distributions import Categorical
            >>> same, apart = [[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]  # two draws at each of two inputs
            >>> prediction = bnn.Prediction(Categorical(probs=torch.tensor([same, apart]).swapaxes(0, 1)))
            >>> prediction.entropy, prediction.mutual_information
            (tensor([0.6931, 0.6931]), tensor([0.0000, 0.6931]))
        """
        self._require_classes("Mutual information")
        if self._num_outcomes > MOST_OUTCOMES:
            num = num_samples(self.num_draws)
            return self.by_rows(lambda part: sampled_information(part._column_probs()), width=num)
        return (self.entropy - self._entropy_given_weights()).clamp_min(0)

    def _entropy_given_weights(self) -> Tensor:
        """Return the mean entropy under each draw, (N,)."""
        return self.by_rows(lambda part: part._unchecked.entropy().mean(0))

    @property
    def _num_outcomes(self) -> int:
        """The number of joint outcomes of several target columns; 1 for a single column."""
        shape = self.distribution.event_shape
        return int(self._num_classes ** shape.numel()) if shape else 1

    def _column_probs(self) -> Tensor:
        """Return the probabilities of the classes of several columns under each draw, (S, N, K, C)."""
        return torch.stack([1 - self._probs, self._probs], -1) if self._is_binary else self._probs.flatten(2, -2)

    @property
    def _probs(self) -> Tensor:
        """The probabilities under each draw, (S, N, C) or (S, N, K)."""
        base = self._base
        if isinstance(base, Categorical) and "probs" not in vars(base):
            return base.logits.exp()  # they are normalised, and softmax over few classes takes many times longer
        return base.probs
