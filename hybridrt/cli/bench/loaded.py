"""A model, loaded to be measured: with its floor, and its peers beside it."""

import time

from hybridrt.cli.bench.settings import Bench, MeasureOptions
from hybridrt.cli.models import busy, load_llm
from hybridrt.cli.options import EngineOptions


def load_bench(model: str, engine: EngineOptions, measure: MeasureOptions) -> Bench:
    """Loads the model in every runtime, and measures what the machine can do."""
    started = time.perf_counter()
    llm = load_llm(model, engine)
    load_seconds = time.perf_counter() - started

    from hybridrt.measure import machine
    from hybridrt.measure.floor import Floor
    from hybridrt.measure.runtime import Hybridrt, Runtime

    parameter = next(llm.engine.model.parameters())
    device, dtype = parameter.device, parameter.dtype
    peers: dict[str, Runtime] = {}
    if measure.against is not None:
        from hybridrt.measure.with_transformers import load_transformers

        with busy("loading it in transformers"):
            peers["transformers"] = load_transformers(model, dtype, device)
    with busy("measuring the machine"):
        limits = machine.measure_limits(device, dtype)
    floor = Floor(llm.engine.model, llm.plan)
    return Bench(llm, limits, floor, Hybridrt(llm), peers, load_seconds)
