"""Compiles and tunes the kernels of flash-linear-attention beforehand, into a folder that FLA_CONFIG_DIR and TRITON_CACHE_DIR
then name: configs/ and triton/. Usage: tune_kda.py FOLDER CASES, where CASES are inputs and options of training steps as JSON.

Its candidates are compiled by nearly as many processes as there are processors, without use of the GPU. Then it waits for a
line on its input: tuning needs the GPU for itself. What is chosen for the first case of either gate is taken for all, as
FLA_CACHE_MODE=full means it. Last the chosen are compiled for all cases.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

BURST = {"warmup": 4, "rep": 16}  # milliseconds; Triton's own 25 and 100 take a minute more


def start(folder, cases, stage, *numbers):
    """This program again, for one stage."""
    tuned = {"FLA_CACHE_MODE": "full", "FLA_CONFIG_DIR": str(folder / "partial"), "TRITON_CACHE_DIR": str(folder / "triton")}
    untuned = {"FLA_CACHE_MODE": "disabled", "TRITON_CACHE_DIR": str(folder / "candidates")}
    command = [sys.executable, __file__, str(folder), json.dumps(cases), stage, *map(str, numbers)]
    environment = {**os.environ, **(tuned if stage == "fill" else untuned)}
    return subprocess.Popen(command, env=environment, stdout=sys.stderr, stdin=subprocess.DEVNULL)


def run_stage(stage, processes):
    begin = time.monotonic()
    if any([process.wait() != 0 for process in processes]):
        raise SystemExit(f"tune_kda: {stage} failed; why is above")
    print(f"tune_kda: {stage} took {time.monotonic() - begin:.0f} s", file=sys.stderr)


def distinct(cases, *properties):
    """The first case of each kind."""
    found = {}
    for case in cases:
        found.setdefault(tuple(of(case) for of in properties), case)
    return list(found.values())


def bounded(case):
    return "lowerBound" in case["options"]


def packed(case):
    return "cuSeqlens" in case["options"]


def batch_and_heads(case):
    batch, _, heads, _ = case["inputs"]["q"]
    return batch > 1, heads


def orchestrate(folder, cases):
    if importlib.util.find_spec("fla") is None:
        return
    ranks = max(1, os.cpu_count() - 2)
    gates = distinct(cases, bounded)
    run_stage("compiling", [start(folder, gates, "compile", rank, ranks) for rank in range(ranks)])
    if not sys.stdin.readline():  # whoever started this is gone
        return
    run_stage("tuning", [start(folder, gates, "tune")])
    kinds = distinct(cases, bounded, packed, batch_and_heads)
    run_stage("compiling the chosen", [start(folder, [case], "fill") for case in kinds])
    shutil.rmtree(folder / "candidates")
    (folder / "partial").rename(folder / "configs")


def run_all(cases):
    """Every kernel of the forward and of the backward, of both ways."""
    import torch

    import kda
    import kda_step

    for case in cases:
        inputs = {
            name: torch.randn(shape, device="cuda", dtype=torch.bfloat16) for name, shape in case["inputs"].items()
        }
        with torch.no_grad():
            kda.prepare(inputs, case["options"])()
        for keep in (False, True):
            kda_step.prepare(keep)(inputs, case["options"])()
    torch.cuda.synchronize()


def compile_share(cases, rank, ranks):
    """Every so many-th candidate, of all kernels, is compiled; nothing is run."""
    from triton.runtime.autotuner import Autotuner

    order = {}

    def run(self, *args, **options):
        self.nargs = dict(zip(self.arg_names, args))
        for config in self.prune_configs(options):
            if order.setdefault((self.base_fn.__name__, str(config)), len(order)) % ranks != rank:
                continue
            try:
                self.fn.run(*args, **{**options, **config.all_kwargs(), "warmup": True})
            except Exception as error:  # one that does not fit; tuning passes it over too
                print(f"{self.base_fn.__name__} {config}: {type(error).__name__}", file=sys.stderr)
        self.nargs = None

    Autotuner.run = run
    run_all(cases)


def tune(cases, folder):
    import triton
    from triton.runtime.autotuner import Autotuner

    def do_bench(call, quantiles):
        return triton.testing.do_bench(call, **BURST, quantiles=quantiles)

    tuners, run = {}, Autotuner.run

    def remembered(self, *args, **options):
        tuners[self.base_fn.__name__] = self
        return run(self, *args, **options)

    Autotuner.run = remembered
    Autotuner.do_bench = property(lambda self: do_bench)
    run_all(cases)
    folder.mkdir(parents=True, exist_ok=True)
    for name, tuner in tuners.items():
        write_choices(folder / f"{name}.json", name, tuner.cache)


def write_choices(file, name, cache):
    """In the form that fla.ops.utils.cache reads."""
    import triton
    from fla.ops.utils.cache import AutotuneKey

    choices = {
        AutotuneKey.key_hash(key): {
            "autotune_key": key,
            "config": {of: getattr(config, of) for of in ("kwargs", "num_warps", "num_ctas", "num_stages", "maxnreg")},
        }
        for key, config in cache.items()
    }
    if not choices:
        return
    default = next(iter(choices.values()))["config"]
    content = {"kernel_name": name, "triton_version": triton.__version__, "default_config": default}
    file.write_text(json.dumps({**content, "autotune_entries": choices}, indent=1))


def main():
    folder, cases, *stage = sys.argv[1:]
    folder, cases = Path(folder), json.loads(cases)
    if not stage:
        orchestrate(folder, cases)
    elif stage[0] == "compile":
        compile_share(cases, int(stage[1]), int(stage[2]))
    elif stage[0] == "tune":
        tune(cases, folder / "partial")
    else:
        run_all(cases)


if __name__ == "__main__":
    main()
