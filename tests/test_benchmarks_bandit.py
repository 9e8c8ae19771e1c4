"""The mushroom bandit: what agents are offered, what they regret, and how they learn from data that grow."""

import pytest
import torch
from helpers import run, typed

import pyrobnn as bnn
from benchmarks.tasks import bandit
from benchmarks.tasks.bandit import Growing

TINY = {"mushrooms": 50, "seeds": 2, "hidden": [4], "memory": 32, "batch_size": 8, "steps": 3, "draws": 4}
TINY |= {"engine": "eager"}
AGENTS = [
    {"name": "mean-field", "guide": {"type": "mean_field"}, "prior": {"type": "scale_mixture"}},
    {"name": "ensemble", "members": 2},
    {"name": "laplace", "guide": {"type": "laplace", "structure": "kron"}},
    {"name": "coin", "epsilon": 1.0},
]


def made_up_world(num=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    data = bnn.Data(torch.eye(6)[torch.randint(6, (40,), generator=generator)], torch.arange(40) % 2)
    return bandit.make_world(data, num, seed)


class Known:
    """A posterior whose draws value eating as told."""

    def __init__(self, draw_means):
        self.draw_means = draw_means

    def predict(self, x, *, num_draws, seed):
        assert num_draws == len(self.draw_means)
        assert x.shape[0] == self.draw_means.shape[1]
        assert (x[: len(x) // 2, -2:] == torch.tensor([1.0, 0.0])).all()
        assert (x[len(x) // 2 :, -2:] == torch.tensor([0.0, 1.0])).all()
        return self


def test_regret_is_zero_for_the_oracle_and_exact_for_each_mistake():
    world = bandit.World(torch.zeros(4, 3), torch.tensor([False, False, True, True]), torch.tensor([0, 0, 1, 0]).bool())
    assert world.regrets(torch.tensor([1.0, 1, 0, 0])).tolist() == [0, 0, 0, 0]
    assert world.regrets(torch.tensor([0.0, 1, 1, 1])).tolist() == [5, 0, 15, 15]
    assert world.rewards(slice(None), torch.tensor([1.0, 0, 1, 1])).tolist() == [5, 0, -35, 5]
    found = bandit.outcome(world, torch.tensor([0.0, 1, 1, 1]))
    assert (found["regret"], found["realised_regret"]) == (35, 10 - (5 - 35 + 5))
    assert (found["poisonous_eaten"], found["edible_left"]) == (2, 1)
    assert (found["steps"], found["curve"]) == ([1, 2, 3, 4], [5, 5, 20, 35])


def test_a_poisonous_mushroom_is_worth_what_the_paper_says_on_average():
    world = made_up_world(20_000)
    paid = world.rewards(slice(None), torch.ones(20_000))[world.poisonous]
    assert set(paid.tolist()) == {-35.0, 5.0}
    assert abs(float(paid.mean()) - bandit.POISONOUS) < 5 * 20 / len(paid) ** 0.5


def test_choices_follow_the_values_and_toss_coins_as_often_as_told():
    settings = bandit.jobs({"entries": [{"name": "greedy"}]})[0]
    x = torch.zeros(2000, 3)
    eat = torch.arange(2000) % 2 == 0
    values = torch.cat([torch.where(eat, 1.0, -1.0), torch.zeros(2000)])[None]
    assert torch.equal(bandit.Chooser(typed(bandit, settings), 0).choose(Known(values), x, 0), eat.long())
    coins = bandit.Chooser(typed(bandit, settings | {"epsilon": 0.5}), 0).choose(Known(values), x, 0)
    assert abs(float((coins != eat).double().mean()) - 0.25) < 0.05
    assert 0.4 < bandit.Chooser(typed(bandit, settings), 0).choose(None, x, 0).double().mean() < 0.6


def test_thompson_agents_judge_by_the_mean_of_two_draws():
    settings = bandit.jobs({"entries": [{"name": "t", "guide": "mean_field"}], "draws": 4})[0]
    values = torch.cat([torch.tensor([[1.0], [1], [-1.5], [-1.5]]).expand(4, 3000), torch.zeros(4, 3000)], 1)
    eaten = bandit.Chooser(typed(bandit, settings), 0).choose(Known(values), torch.zeros(3000, 3), 0)
    assert abs(float(eaten.double().mean()) - 1 / 6) < 0.03  # both draws of the two that want to eat
    alone = bandit.Chooser(typed(bandit, settings | {"averaged": 1}), 0).choose(Known(values), torch.zeros(3000, 3), 0)
    assert abs(float(alone.double().mean()) - 1 / 2) < 0.05


@pytest.mark.slow
def test_repeating_a_memory_does_not_change_what_is_learned():
    x = torch.linspace(-1, 1, 6)[:, None]
    y = x[:, 0] ** 2
    model = bnn.BNN(bnn.MLP(1, [3], 1), prior=bnn.priors.Normal(0.5), likelihood=bnn.likelihoods.Gaussian(scale=0.3))
    settings = {"steps": 30, "lr": 0.01}
    grown = Growing(model, bnn.guides.Map(), size=18, settings=settings, engine="eager")
    ours = grown.fit([(x, y)], seed=0)[0].mean()
    method = bnn.SVI(guide="map", **settings)
    plain = bnn.fit_replicates(model, (x, y), [method], seed=0, engine="eager", progress=False)[0].mean()
    for name, value in plain.items():
        torch.testing.assert_close(ours[name], value, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("suite", "message"),
    [
        ({"entries": [{"name": "a"}], "mushroom": 5}, "Unknown key `mushroom` in the suite. Known: .*mushrooms"),
        ({"entries": [{"name": "a", "eps": 0.1}]}, "Unknown key `eps` in entry a. Known: epsilon, guide"),
        ({"entries": [{"name": "a", "epsilon": 5}]}, "`epsilon` in entry a: .* less than or equal to 1, got 5"),
        ({"lr": float("inf")}, "`lr` in the suite: .* finite number, got inf"),
    ],
)
def test_suites_with_mistakes_are_refused(suite, message):
    with pytest.raises(bnn.InputError, match=message):
        bandit.jobs(suite)


@pytest.fixture(scope="module")
def rows():
    return [row for job in bandit.jobs({**TINY, "entries": AGENTS}) for row in run(bandit, job)]


@pytest.mark.needs_data("mushroom")
def test_every_agent_eats_and_its_row_adds_up_and_comes_again(rows):
    assert [(row["entry"], row["seed"]) for row in rows] == [(a["name"], s) for a in AGENTS for s in (0, 1)]
    for row in rows:
        assert row["regret"] == row["curve"][-1] == 15 * row["poisonous_eaten"] + 5 * row["edible_left"]
        assert row["curve"] == sorted(row["curve"])
        assert row["steps"][-1] == TINY["mushrooms"]
    job = bandit.jobs({**TINY, "entries": AGENTS[:1]})[0]
    assert [row | {"seconds": 0} for row in run(bandit, job)] == [row | {"seconds": 0} for row in rows[:2]]
    assert bandit.datasets(typed(bandit, job)) == ("mushroom",)
