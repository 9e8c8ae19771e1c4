"""What a fit keeps, and files of it: the posterior as `bnn.save` has it, the encoder and the parameters; no code."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyrobnn._core.errors import REFUSALS, InputError, shown
from pyrobnn._core.settings import to_dict
from pyrobnn._core.tree_files import write_tree
from pyrobnn.data.imputed import Imputer
from pyrobnn.estimators.parameters import Parameters
from pyrobnn.estimators.rows import Coding, TargetKind
from pyrobnn.inference.parts import PARTS, Facts
from pyrobnn.nets import is_custom
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.storage.load import content_of, from_tree
from pyrobnn.storage.save import FORMAT_VERSION, to_tree
from pyrobnn.tables.encoder import Encoder


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit leaves: the coding of rows, what the rules looked at, and the posterior."""

    coding: Coding
    facts: Facts
    posterior: Posterior | Mixture

    def __getstate__(self) -> dict[str, Any]:
        """Return what pickles hold: the posterior as in a file, which any machine loads, and the network of a user."""
        net = self.posterior.bnn.settings["net"]
        return vars(self) | {"posterior": to_tree(self.posterior), "net": net if is_custom(net) else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, posterior=from_tree(state["posterior"], Path("The pickle"), net=state.pop("net")))


def write_estimator(model: Parameters, fitted: Fitted, path: Path) -> None:
    """Write a file with parameters and a fit; refuse parameters that are objects."""
    coding = fitted.coding
    arrays = {"classes_": coding.kind.classes, "feature_names_in_": vars(model).get("feature_names_in_", np.zeros(0))}
    imputer = coding.imputer and {"rows": torch.from_numpy(coding.imputer.rows), "targets": coding.imputer.targets}
    content = {
        "format_version": FORMAT_VERSION,
        "estimator": type(model).__name__,
        "params": {name: _stored(name, value) for name, value in model.get_params(deep=False).items()},
        "encoder": asdict(coding.encoder),
        "arrays": {name: [str(values.dtype), values.tolist()] for name, values in arrays.items()},
        "shape": coding.kind.shape,
        "facts": {name: value for name, value in vars(fitted.facts).items() if name != "given"},
        "imputer": imputer,
        "posterior": to_tree(fitted.posterior),
    }
    write_tree(path, content, replaces=False)


def read_estimator[E: Parameters](cls: type[E], path: Path) -> tuple[E, Fitted]:
    """Return the estimator that a file holds, without its fit, and the fit; refuse what does not fit together."""
    content = content_of(path)
    found = content.get("estimator", "a posterior")
    if found != cls.__name__:
        raise InputError(f"{path} holds {shown(found)}, no {cls.__name__}: load it as that, or by bnn.load.")
    try:
        tables = {name: table for name, table in content["params"].items() if isinstance(table, Mapping)}
        params = content["params"] | {name: PARTS[name].resolve(table) for name, table in tables.items()}
        if isinstance(params.get("class_weight"), list):
            params["class_weight"] = dict(params["class_weight"])
        model = cls(**params)
        arrays = {name: np.array(values, dtype=dtype) for name, (dtype, values) in content["arrays"].items()}
        encoder, drawn_from = Encoder.stored(content["encoder"]), content["imputer"]
        imputer = drawn_from and Imputer(drawn_from["rows"].numpy(), encoder.onehot(), drawn_from["targets"])
        coding = Coding(encoder, imputer, TargetKind(tuple(content["shape"] or ()), arrays["classes_"]))
        fitted = Fitted(coding, Facts(**content["facts"]), from_tree(content["posterior"], path))
        model.n_features_in_ = len(encoder.columns)
        if len(arrays["feature_names_in_"]):
            model.feature_names_in_ = arrays["feature_names_in_"]
        member: Any = fitted.posterior.members[0]
        width = len(encoder.get_feature_names_out())
        if member.x_scaler.row(member.example[0]) != (width,):
            raise InputError(f"the encoder makes {width} columns, which the posterior does not take")
    except (*REFUSALS, AttributeError) as error:
        raise InputError(f"{path} does not fit ({error}): restore it, or save the estimator again.") from None
    return model, fitted


def _stored(name: str, given: Any) -> Any:
    """Return a parameter as a file holds it."""
    value = given.item() if isinstance(given, np.generic) else given
    if name == "class_weight" and isinstance(value, Mapping):  # labels may be no texts
        value = [[np.asarray(label).item(), weight] for label, weight in value.items()]
    try:
        return to_dict(value)
    except InputError:
        how = "set a number, a text or a setting by set_params, or save its `posterior_` by bnn.save"
        raise InputError(f"`{name}` is an object, {shown(value)}, which a file does not hold: {how}.") from None
