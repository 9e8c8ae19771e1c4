"""Files of fitted estimators: the posterior as `bnn.save` has it, the encoder and the parameters; no code."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyrobnn._core.errors import REFUSALS, InputError, shown
from pyrobnn._core.settings import to_dict
from pyrobnn.data.imputed import Imputer
from pyrobnn.inference.parts import PARTS, Facts
from pyrobnn.storage.load import from_tree
from pyrobnn.storage.save import to_tree
from pyrobnn.tables.encoder import Encoder


def content(model: Any) -> dict[str, Any]:
    """Return the content of a file; refuse parameters that are objects."""
    params, parts, state = dict[str, Any](), dict[str, Any](), vars(model)
    for name, given in model.get_params(deep=False).items():
        value = given.item() if isinstance(given, np.generic) else given
        if name in PARTS and (dataclasses.is_dataclass(value) or isinstance(value, Mapping)):
            parts[name] = to_dict(value)
        elif isinstance(value, Mapping):  # by class, which may be no text
            params[name] = [[np.asarray(key).item(), weight] for key, weight in value.items()]
        elif value is None or isinstance(value, (str, bool, int, float)):
            params[name] = value
        else:
            how = "set a number, a text or a setting by set_params, or save its `posterior_` by bnn.save"
            raise InputError(f"`{name}` is an object, {shown(value)}, which a file does not hold: {how}.")
    imputer, facts = model._imputer, {name: value for name, value in vars(model._facts).items() if name != "given"}
    return {
        "estimator": type(model).__name__,
        "params": params,
        "parts": parts,
        "encoder": dataclasses.asdict(model.encoder_),
        "arrays": {name: [str(v.dtype), v.tolist()] for name, v in state.items() if isinstance(v, np.ndarray)},
        "shape": state.get("_shape"),
        "facts": facts,
        "imputer": imputer and {"rows": torch.from_numpy(imputer.rows), "targets": imputer.targets},
        "posterior": to_tree(model.posterior_),
    }


def rebuilt(kind: Any, content: Mapping[str, Any], path: Path) -> Any:
    """Return the estimator of a file with such content; refuse what does not fit together."""
    found = content.get("estimator", "a posterior")
    if found != kind.__name__:
        raise InputError(f"{path} holds {shown(found)}, no {kind.__name__}: load it as that, or by bnn.load.")
    try:
        pairs = {name: dict(value) for name, value in content["params"].items() if isinstance(value, list)}
        parts = {name: PARTS[name].resolve(table) for name, table in content["parts"].items()}
        model, encoder = kind(**(content["params"] | pairs | parts)), Encoder.stored(content["encoder"])
        arrays = {name: np.array(values, dtype=dtype) for name, (dtype, values) in content["arrays"].items()}
        model.posterior_, model.encoder_ = from_tree(content["posterior"], path), encoder
        model.n_features_in_, model._facts = len(encoder.columns), Facts(**content["facts"])
        vars(model).update({name: arrays[name] for name in ("classes_", "feature_names_in_") if name in arrays})
        if content["shape"] is not None:
            model._shape = tuple(content["shape"])
        if (gaps := content["imputer"]) is not None:
            model._imputer = Imputer(gaps["rows"].numpy(), encoder.onehot(), gaps["targets"])
        first, width = model.posterior_.members[0], len(encoder.get_feature_names_out())
        if first.x_scaler.row(first.example[0]) != (width,):
            raise InputError(f"the encoder makes {width} columns, which the posterior does not take")
    except (*REFUSALS, AttributeError) as error:
        raise InputError(f"{path} does not fit ({error}): restore it, or save the estimator again.") from None
    return model
