# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Is it worth a try?
#
# Somebody offers you one mushroom after the other. You may eat it or leave it. An edible one is worth 5. A poisonous
# one costs 35 half of the time, and is worth 5 the other half. A mushroom that you leave is worth nothing and teaches
# nothing. You see its features: cap, gills, odour. How do you learn which ones to eat, with little poison?
#
# This is the *contextual bandit* of Blundell et al. (2015, sections 5.3 and 6.3). It has two conflicting aims: to *use*
# what is known, and to *explore* what is not. A network with a posterior over its weights can do both at once. It takes
# two to three minutes on one core.
#
# ![Regret of four kinds of agents: those that toss coins regret most](attachment:cover.png)

# %%
import dataclasses
import math
import os

import matplotlib.pyplot as plt
import pandas as pd
import torch
from tqdm import tqdm

import pyrobnn as bnn

plt.style.use("pyrobnn.plots.style")  # letters that a phone shows, and the colours of bnn.plots
BLUE, ORANGE, GREY, LIGHT_BLUE, INK, PALE = (f"C{place}" for place in range(6))
FAST = os.environ.get("PYROBNN_NB_FAST") == "1"  # a few steps only, to check that everything runs
MEALS, BLOCK, STEPS, SEEDS = (128, 64, 10, 1) if FAST else (4000, 100, 400, 3)
BUFFER, BATCH = (128, 64) if FAST else (4096, 64)
ADAM = {"lr": 0.003, "schedule": "cosine_annealing_lr", "batch_size": BATCH}
ENGINE = "eager" if FAST else "captured"


# %% [markdown]
# ## Mushrooms and meals
#
# The UCI data set has 8124 mushrooms, 22 features in 117 one-hot columns; 52 % are edible. (Without the file, the fast
# run makes up some data.) The input of the network is a mushroom with an action, its output the expected reward.
#
# *Regret* is the expected reward of an oracle minus the expected reward of the agent. The oracle eats the edible
# mushrooms and leaves the others. An edible mushroom left costs 5, a poisonous one eaten 15.

# %%
def load():
    if FAST and not next(entry for entry in bnn.datasets.info() if entry.name == "mushroom").available:
        x = torch.randint(2, (500, 117), generator=torch.Generator().manual_seed(0)).float()
        return bnn.Data(x, x[:, 0].long())
    return bnn.datasets.load("mushroom").data


mushrooms = load()
poisonous = mushrooms.y == 1


def with_action(rows, eaten):
    return torch.cat([mushrooms.x[rows], torch.stack([eaten, 1 - eaten], 1).float()], 1)


def reward(rows, eaten, generator):
    ill = poisonous[rows] & (torch.rand(len(rows), generator=generator) < 0.5)
    return torch.where(ill, -35.0, 5.0) * eaten / 10  # in tens, of the size that a network gives


def regret(rows, eaten):
    expected = torch.where(poisonous[rows], -15.0, 5.0)
    return expected.clamp_min(0) - expected * eaten


print(f"{len(mushrooms)} mushrooms, {poisonous.double().mean():.0%} poisonous, {mushrooms.x.shape[1]} columns")


# %% [markdown]
# ## Two ways to choose
#
# *ε-greedy*: fit one network and eat every mushroom with a positive predicted reward. With probability ε, toss a coin
# instead.
#
# *Thompson sampling* (1933): draw one network from the posterior for each mushroom, and take its best action. Where the
# posterior is certain, all draws agree and no trial is wasted. Where it is uncertain, some draws predict a reward and
# the agent tries. There is no ε to choose, and exploration ends by itself.
#
# Both have the same network, two layers of 100 ReLU units, and learn from their last 4096 meals. Prior and guide are as
# in notebook 05: a scale mixture and independent normals. All agents of one seed are offered the same mushrooms.

# %%
@dataclasses.dataclass
class Agent:
    """One who eats: its rule, its memory, and what it regrets. `epsilon` None stands for Thompson sampling."""

    epsilon: float | None
    seed: int

    def __post_init__(self):
        self.world = torch.Generator().manual_seed(self.seed)
        self.coin = torch.Generator().manual_seed(100 + self.seed)
        self.x, self.y = torch.empty(0, mushrooms.x.shape[1] + 2), torch.empty(0)
        self.posterior, self.regrets = None, []

    def eat(self, count):
        rows = torch.randint(len(mushrooms), (count,), generator=self.world)
        eaten = self.choose(rows)
        self.x = torch.cat([self.x, with_action(rows, eaten)])[-BUFFER:]
        self.y = torch.cat([self.y, reward(rows, eaten, self.world)])[-BUFFER:]
        self.regrets += regret(rows, eaten).tolist()

    def choose(self, rows):
        random = torch.randint(2, (len(rows),), generator=self.coin)
        if self.posterior is None:
            return random
        yes, no = with_action(rows, torch.ones(len(rows))), with_action(rows, torch.zeros(len(rows)))
        num_draws = len(rows) if self.epsilon is None else 1
        values = self.posterior.predict(torch.cat([yes, no]), num_draws=num_draws, seed=len(self.regrets)).draw_means
        if self.epsilon is None:  # mushroom i is judged by draw i
            each = torch.arange(len(rows))
            return (values[each, each] > values[each, each + len(rows)]).long()
        tossed = torch.rand(len(rows), generator=self.coin) < self.epsilon
        return torch.where(tossed, random, (values[0, : len(rows)] > values[0, len(rows) :]).long())


# %% [markdown]
# A new fit after each mushroom would be best, but too slow. So the agents eat in blocks of 100, with a new draw for
# each mushroom. Then they learn for 400 steps, from where they stopped. Two tricks keep this fast.
#
# * All agents that learn alike do so side by side, in one captured graph (`bnn.fit_replicates`).
# * The graph is recorded for one size of data, but the memory grows. So the memory is repeated until it fills 4096
#   rows. That counts each meal several times. A `temperature` (the weight of the KL) of the same size corrects it. The
#   ELBO is then the ELBO of the meals times a constant (except for the last, incomplete repetition).
#
# A guide may be any object with a `build`. The guide here starts where the last fit ended.

# %%
@dataclasses.dataclass
class From:
    """A guide that starts at the posterior of the last fit."""

    guide: object
    posterior: object

    def build(self, model, *args):
        built = self.guide.build(model, *args)
        if self.posterior is not None:
            built.load_state_dict(self.posterior.guide.state_dict())
        return built


def learn(agents, model, guide, seed):
    methods, memories = [], []
    for agent in agents:
        rows = torch.arange(BUFFER) % len(agent.y)
        memories.append((agent.x[rows], agent.y[rows]))
        start, temperature = From(guide, agent.posterior), BUFFER / len(agent.y)
        methods.append(bnn.SVI(guide=start, temperature=temperature, steps=STEPS, **ADAM))
    fits = bnn.fit_replicates(model, memories, methods, seed=seed, progress=False, engine=ENGINE)
    for agent, posterior in zip(agents, fits, strict=True):
        agent.posterior = posterior


def play(agents, prior, guide):
    net = bnn.MLP(mushrooms.x.shape[1] + 2, [100, 100], 1)
    model = bnn.BNN(net, prior=prior, likelihood=bnn.likelihoods.Gaussian(scale=0.3))
    for eaten in tqdm(range(0, MEALS, BLOCK), disable=FAST):
        for agent in agents:
            agent.eat(BLOCK)
        learn(agents, model, guide, seed=eaten)
    return agents


thompson = play(
    [Agent(None, seed) for seed in range(SEEDS)],
    bnn.priors.ScaleMixture(pi=0.25, sigma1=math.exp(-1), sigma2=math.exp(-6)),
    bnn.guides.MeanField(init_rho=-4.0),
)
greedy = play(
    [Agent(epsilon, seed) for epsilon in (0.0, 0.01, 0.05) for seed in range(SEEDS)],
    bnn.priors.Normal(1.0),
    bnn.guides.Map(),
)

# %% [markdown]
# ## Who regrets less?

# %% tags=["cover"]
groups = {"Thompson": thompson}
for epsilon in (0.0, 0.01, 0.05):
    groups[f"ε = {100 * epsilon:.0f} %"] = [agent for agent in greedy if agent.epsilon == epsilon]
regrets = {name: torch.tensor([agent.regrets for agent in agents]) for name, agents in groups.items()}
figure, (above, below) = plt.subplots(2, 1, figsize=(5.6, 5.8), sharex=True)
offered, window = torch.arange(1, MEALS + 1), MEALS // 20
looks = ((BLUE, "-"), (GREY, "-"), (ORANGE, "--"), (INK, ":"))
for (name, values), (color, line) in zip(regrets.items(), looks, strict=True):
    total = values.cumsum(1)
    above.fill_between(offered, total.amin(0), total.amax(0), color=color, alpha=0.2, linewidth=0)
    above.plot(offered, total.mean(0), line, color=color, label=name)
    rate = values.mean(0).unfold(0, window, window).mean(1)
    below.plot(window * (torch.arange(len(rate)) + 0.5), rate, line, color=color)
above.set(title="Regret so far: mean of three agents, and their range", ylabel="cumulative regret (points)")
above.set(xlim=(0, MEALS), ylim=(0, None))
above.legend()
below.set(title="Regret as it goes on: mean of three agents", ylabel="regret per mushroom (points)", yscale="log")
below.set(xlabel="mushrooms offered")
below.set_yticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
below.minorticks_off()
plt.show()
rows = {}
for name, values in regrets.items():
    late = values[:, -MEALS // 5 :]
    rows[name] = {
        "regret": values.sum(1).mean().item(),
        "smallest": values.sum(1).min().item(),
        "largest": values.sum(1).max().item(),
        "of it in the last fifth": late.sum(1).mean().item(),
        "poisonous eaten there": (late == 15).sum(1).double().mean().item(),
        "edible left there": (late == 5).sum(1).double().mean().item(),
    }
pd.DataFrame(rows).T.round(0).astype(int)

# %% [markdown]
# Coins are expensive. With ε = 5 % an agent has a regret of 4500 after 4000 mushrooms, twice as much as Thompson
# sampling with 2100. It cannot stop: a coin costs 4.9 on average, which is 0.25 per mushroom as long as coins are
# tossed. The random meals also disturb what it learns. With ε = 1 % the regret is 3400.
#
# The agent without coins has 2600: each of its three seeds has more than the worst of Thompson sampling, if only a
# little. Three seeds are few. It got its exploration for free, too: all agents ate or left the first hundred mushrooms
# at random. In the paper they did not, and the greedy agent ate nothing for about the first thousand.
#
# Thompson sampling does not stop exploring here, as it does in the paper. Its regret stays at about 0.3 per mushroom,
# and its errors are trials. Of the last eight hundred it ate 15 poisonous ones and left 4 edible ones; the greedy agent
# ate 14 and left 4. Two causes are possible; none was tested here. The likelihood assumes a noise of 3, so a few lucky
# meals make a poisonous kind look good. And Blundell et al. trained sixteen times as long for each mushroom, and
# averaged two draws for each choice. Riquelme, Tucker & Snoek (2018) studied many such problems. They found that a
# variational posterior which has not converged explores poorly.

# %% [markdown]
# ## One function, one agent
#
# Within a block each mushroom gets a new draw, for speed. To follow one draw for longer, `bnn.sample_function` returns
# a network as a plain function. The table shows the values that four draws and the mean of 500 give to the same eight
# mushrooms.

# %%
rows = torch.randint(len(mushrooms), (8,), generator=torch.Generator().manual_seed(1))
eaten = with_action(rows, torch.ones(8))
posterior = thompson[0].posterior
values = {f"draw {seed}": 10 * bnn.sample_function(posterior, seed=seed)(eaten) for seed in range(4)}
values["mean"] = 10 * posterior.predict(eaten, num_draws=500).mean
table = pd.DataFrame({name: value.tolist() for name, value in values.items()}).round(1)
table.insert(0, "mushroom", ["poisonous" if bad else "edible" for bad in poisonous[rows]])
table

# %% [markdown]
# ## Try it
#
# * The noise of 3 is wrong: the reward of a poisonous mushroom varies by 20, the reward of an edible one not at all.
#   How does the assumed noise change exploration?
# * `bnn.guides.Dropout(rate=0.2)` for the posterior: does it still explore?
# * Judge each mushroom by the mean of two draws, or give the agents more steps. Does Thompson sampling stop
#   exploring?
