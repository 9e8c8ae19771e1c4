"""Fits many specs to many data sets of the same size, side by side where they share a captured graph."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pyrobnn as bnn
from benchmarks.tasks.schema import Fitted
from pyrobnn.runs.spec import RunSpec

Pairs = Sequence[tuple[RunSpec, bnn.Data]]


def engine_of(fitted: Fitted) -> str:
    """Return the engine that was used."""
    return fitted.members[0].record.engine.used


def fit_all(pairs: Pairs, seed: int) -> list[Fitted]:
    """Return a posterior for each pair of a spec and a data set; all sets have equally many rows.

    Fits by SVI, and ensembles of it, are replicates of one captured graph where their specs differ only in numbers
    of the prior or the guide; the others are fitted one after the other. Noise goes by the place among those that share
    a graph: fits with different graphs have it in common.
    """
    groups: dict[str, list[int]] = {}
    for place, (spec, data) in enumerate(pairs):
        groups.setdefault(_graph(spec, data), []).append(place)
    fits: dict[int, Fitted] = {}
    for places in groups.values():
        fitted = _fit_group([pairs[place] for place in places], seed)
        fits |= zip(places, fitted, strict=True)
    return [fits[place] for place in range(len(pairs))]


def _graph(spec: RunSpec, data: bnn.Data) -> str:
    """Return the same words for specs and data that share a captured graph."""
    tables = spec.as_dict()
    numbers = {name: _without_numbers(tables[name]) for name in ("prior", "guide") if name in tables}
    return json.dumps([tables | numbers, data.num_inputs], sort_keys=True, default=str)


def _without_numbers(table: Any) -> Any:
    if not isinstance(table, dict):
        return table
    return {key: None if isinstance(value, float) else _without_numbers(value) for key, value in table.items()}


def _fit_group(pairs: Pairs, seed: int) -> list[Fitted]:
    specs, sets = [spec for spec, _ in pairs], [data for _, data in pairs]
    models = [_model(spec, data) for spec, data in pairs]
    methods = [spec.fit.method for spec in specs]
    arguments: dict[str, Any] = {"seed": seed, "device": "cpu", "engine": specs[0].fit.engine, "progress": False}
    if isinstance(methods[0], bnn.SVI):
        return list(bnn.fit_replicates(models, sets, methods, **arguments))
    if isinstance(methods[0], bnn.Ensemble) and isinstance(methods[0].method, bnn.SVI) and not methods[0].anchored:
        count, arguments["bootstrap"] = methods[0].members, methods[0].bootstrap
        members = bnn.fit_replicates(
            _repeated(models, count),
            _repeated(sets, count),
            [ensemble.method for ensemble in _repeated(methods, count)],
            **arguments,
        )
        return [bnn.Mixture(group) for group in itertools.batched(members, count)]
    each = enumerate(zip(models, sets, methods, strict=True))
    return [bnn.fit(*parts, **arguments | {"seed": seed + place}) for place, parts in each]


def _repeated(values: list[Any], count: int) -> list[Any]:
    return [value for value in values for _ in range(count)]


def _model(spec: RunSpec, data: bnn.Data) -> bnn.BNN:
    likelihood = spec.likelihood or bnn.likelihoods.Gaussian()
    net = dataclasses.replace(spec.net, in_features=data.num_inputs, out_features=likelihood.num_outputs(data.y))
    return bnn.BNN(net, prior=spec.prior, likelihood=likelihood)
