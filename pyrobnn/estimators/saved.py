"""What a fit keeps, and files of it: the posterior as `bnn.save` has it, the encoder and the parameters; no code."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator

from pyrobnn._core.errors import REFUSALS, InputError, shown
from pyrobnn._core.settings import to_dict
from pyrobnn.data.imputed import Imputer, with_copies, with_targets
from pyrobnn.data.in_memory import Data
from pyrobnn.inference.parts import PARTS, Facts
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.storage.load import from_tree
from pyrobnn.storage.save import to_tree
from pyrobnn.tables.encoder import Encoder


@dataclass(frozen=True, eq=False)
class TargetKind:
    """What targets are: the shape of predictions for a row, () or (K,), and the K classes, none for numbers."""

    shape: tuple[int, ...]
    classes: np.ndarray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, eq=False)
class Coding:
    """From columns and targets to numbers, as learned from the rows of a fit; without an imputer nothing is drawn."""

    encoder: Encoder
    imputer: Imputer | None
    kind: TargetKind

    @classmethod
    def learn(cls, encoder: Encoder, columns: pd.DataFrame, y: np.ndarray, kind: TargetKind) -> Self:
        """Return the coding that rows teach; values are drawn where some may be missing, or categories unknown."""
        x = encoder.matrix(columns)
        both = with_targets(x, y, len(kind.classes))
        has_draws = bool(encoder.onehot()) or encoder.missing == "impute"
        imputer = Imputer(both, encoder.onehot(), both.shape[1] - x.shape[1]) if has_draws else None
        return cls(encoder, imputer, kind)

    def data(self, columns: pd.DataFrame, y: np.ndarray, **settings: Any) -> Data:
        """Return rows and their targets as numbers, with copies of those that lack values."""
        x, names = self.encoder.matrix(columns), self.encoder.get_feature_names_out().tolist()
        return with_copies(x, y, len(self.kind.classes), self.imputer, feature_names=names, **settings)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit leaves: the coding of rows, what the rules looked at, and the posterior."""

    coding: Coding
    facts: Facts
    posterior: Posterior | Mixture


def content(model: BaseEstimator, fitted: Fitted) -> dict[str, Any]:
    """Return the content of a file; refuse parameters that are objects."""
    params = dict[str, Any]()
    for name, given in model.get_params(deep=False).items():
        value = given.item() if isinstance(given, np.generic) else given
        if name == "class_weight" and isinstance(value, Mapping):  # labels may be no texts
            value = [[np.asarray(label).item(), weight] for label, weight in value.items()]
        try:
            params[name] = to_dict(value)
        except InputError:
            how = "set a number, a text or a setting by set_params, or save its `posterior_` by bnn.save"
            raise InputError(f"`{name}` is an object, {shown(value)}, which a file does not hold: {how}.") from None
    coding = fitted.coding
    arrays = {"classes_": coding.kind.classes, "feature_names_in_": vars(model).get("feature_names_in_", np.zeros(0))}
    imputer = coding.imputer and {"rows": torch.from_numpy(coding.imputer.rows), "targets": coding.imputer.targets}
    return {
        "estimator": type(model).__name__,
        "params": params,
        "encoder": asdict(coding.encoder),
        "arrays": {name: [str(values.dtype), values.tolist()] for name, values in arrays.items()},
        "shape": coding.kind.shape,
        "facts": {name: value for name, value in vars(fitted.facts).items() if name != "given"},
        "imputer": imputer,
        "posterior": to_tree(fitted.posterior),
    }


def rebuilt[E: BaseEstimator](kind: type[E], content: Mapping[str, Any], path: Path) -> E:
    """Return the estimator of a file with such content; refuse what does not fit together."""
    found = content.get("estimator", "a posterior")
    if found != kind.__name__:
        raise InputError(f"{path} holds {shown(found)}, no {kind.__name__}: load it as that, or by bnn.load.")
    try:
        tables = {name: table for name, table in content["params"].items() if isinstance(table, Mapping)}
        params = content["params"] | {name: PARTS[name].resolve(table) for name, table in tables.items()}
        if isinstance(params.get("class_weight"), list):
            params["class_weight"] = dict(params["class_weight"])
        model, encoder = kind(**params), Encoder.stored(content["encoder"])
        arrays = {name: np.array(values, dtype=dtype) for name, (dtype, values) in content["arrays"].items()}
        targets = TargetKind(tuple(content["shape"] or ()), arrays["classes_"])
        gaps = content["imputer"]
        imputer = gaps and Imputer(gaps["rows"].numpy(), encoder.onehot(), gaps["targets"])
        posterior = from_tree(content["posterior"], path)
        model._fitted = Fitted(Coding(encoder, imputer, targets), Facts(**content["facts"]), posterior)
        model.n_features_in_ = len(encoder.columns)
        if len(arrays["feature_names_in_"]):
            model.feature_names_in_ = arrays["feature_names_in_"]
        first, width = posterior.members[0], len(encoder.get_feature_names_out())
        if first.x_scaler.row(first.example[0]) != (width,):
            raise InputError(f"the encoder makes {width} columns, which the posterior does not take")
    except (*REFUSALS, AttributeError) as error:
        raise InputError(f"{path} does not fit ({error}): restore it, or save the estimator again.") from None
    return model
