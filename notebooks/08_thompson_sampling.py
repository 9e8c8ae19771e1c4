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
# what is known, and to *explore* what is not. A network with a posterior over its weights can do both at once. This
# notebook took 16 minutes on two busy cores.
#
# ![Cumulative regret of the agents](attachment:cover.png)

# %%
# %matplotlib inline
import dataclasses
import math
import os

import matplotlib.pyplot as plt
import pandas as pd
import torch
from tqdm import tqdm

import pyrobnn as bnn

FAST = os.environ.get("PYROBNN_NB_FAST") == "1"  # a few steps only, to check that everything runs
MEALS, BLOCK, STEPS, SEEDS = (128, 64, 10, 1) if FAST else (5000, 100, 800, 3)
BUFFER, BATCH = (128, 64) if FAST else (4096, 64)
ADAM = {"lr": 0.003, "schedule": "cosine_annealing_lr", "batch_size": BATCH}
ENGINE = "eager" if FAST else "captured"
INK, BLUE, GREY = "#1c1c1c", "#0b4f8a", "#8a8a8a"
plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False, "font.size": 9, "axes.titlelocation": "left"}


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
# each mushroom. Then they learn for 800 steps, from where they stopped. Two tricks keep this fast.
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
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
window = MEALS // 20
for (name, values), (color, line) in zip(
    regrets.items(), ((INK, "-"), (GREY, "-"), (BLUE, "--"), (BLUE, ":")), strict=True
):
    left.plot(values.cumsum(1).T, line, color=color, linewidth=1.4, label=[name, *[None] * (SEEDS - 1)])
    rate = values.mean(0).unfold(0, window, window).mean(1)
    right.plot(window * (torch.arange(len(rate)) + 0.5), rate, line, color=color, linewidth=1.4, label=name)
left.set(title="cumulative regret, each seed", xlabel="mushrooms offered", ylim=(0, None), xlim=(0, MEALS))
right.set(title="regret a mushroom, mean over seeds", xlabel="mushrooms offered", yscale="log", xlim=(0, MEALS))
right.set_yticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
right.minorticks_off()
left.legend(frameon=False)
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
# Coins are expensive. With ε = 5 % an agent has a regret of 5500 after 5000 mushrooms, twice as much as Thompson
# sampling with 2800. It cannot stop: a coin costs 4.9 on average, which is 0.25 per mushroom as long as coins are
# tossed. The random meals also disturb what it learns. With ε = 1 % the regret is 3400.
#
# But the agent without coins has no more regret than Thompson sampling, 2800 too, and three seeds cannot tell the two
# apart. It got its exploration for free: all agents ate or left the first hundred mushrooms at random. In the paper
# they did not, and the greedy agent ate nothing for about the first thousand.
#
# Thompson sampling does not stop exploring here, as it does in the paper. After 2000 mushrooms its regret stays at
# about 0.4 per mushroom, and its errors are trials. Of the last thousand it ate 27 poisonous ones and left 2 edible
# ones; the greedy agent ate 17 and left 8. Three causes are possible; none was tested here. The likelihood assumes a
# noise of 3, so a few lucky meals make a poisonous kind look good. The memory of 4096 forgets the bad meals. And
# Blundell et al. trained eight times as long for each mushroom, and averaged two draws for each choice. Riquelme,
# Tucker & Snoek (2018) studied many such problems. They found that a variational posterior which has not converged
# explores poorly.

# %% [markdown]
# ## One function, one agent
#
# Within a block each mushroom gets a new draw, for speed. To follow one draw for longer, `bnn.sample_function` returns
# a network as a plain function. The plot shows the values that four draws and the mean of 500 give to the same eight
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
# * Judge each mushroom by the mean of two draws, or give the agents more steps or a longer memory. Does Thompson
#   sampling stop exploring?
