"""Measures attention on the CPU beside PyTorch's scaled_dot_product_attention, in one run on the same cores.

    python3 scripts/bench/compare_torch_cpu.py [--node node] [--out docs/benchmarks] [--threads 1,16]

Both compute the same inputs; results are compared before anything is timed. The two take turns in short bursts, never at
the same time, so that a slow moment of the machine falls on both: a round is a burst of each, the order changes from round to
round, and a round's figure is the median of its calls. With one thread both processes are bound to the same processor.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as functional

ROUNDS = 9
SECONDS = 0.2  # of calls, an implementation and round
IDLE = 0.25  # before each burst of several threads: the other's stop spinning
SHAPES = [(1, 2048, 8, 64), (1, 2048, 8, 128)]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Largest relative difference (norm of the difference over norm) between two right results of a precision.
AGREEMENT = {"float32": 1e-5, "bfloat16": 1e-2}


class Worker:
    """warpgrad, in a Node process of its own."""

    def __init__(self, node):
        script = pathlib.Path(__file__).parent / "attention-worker.cjs"
        self.process = subprocess.Popen([node, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command, **request):
        self.process.stdin.write(json.dumps({"command": command, **request}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("warpgrad's process ended; its error is above")
        return json.loads(line)


class Torch:
    """PyTorch on the same inputs, in its own layout [B, H, S, D]."""

    def __init__(self, inputs, dtype):
        q, k, v, d_out = (x.to(dtype).transpose(1, 2).contiguous() for x in inputs)
        self.inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        self.d_out = d_out

    def forward(self):
        return functional.scaled_dot_product_attention(*self.inputs, is_causal=True)

    def results(self):
        out = self.forward()
        gradients = torch.autograd.grad(out, self.inputs, self.d_out)
        return [x.detach().transpose(1, 2).float() for x in (out, *gradients)]

    def time(self, pass_name, threads):
        """Milliseconds of the calls after the first."""
        torch.set_num_threads(threads)
        times = []
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            out = self.forward()
            middle = time.perf_counter()
            if pass_name == "forward":
                times.append(1e3 * (middle - start))
                continue
            torch.autograd.grad(out, self.inputs, self.d_out)
            times.append(1e3 * (time.perf_counter() - middle))
        return times[1:]


def relative(actual, expected):
    return ((actual - expected).norm() / expected.norm()).item()


def compare(worker, shape, dtype_name, folder):
    """Loads one problem into both, and refuses to go on when they disagree."""
    torch.manual_seed(0)
    dtype = DTYPES[dtype_name]
    inputs = [torch.randn(shape).to(dtype).float() for _ in range(4)]
    source, result = folder / "inputs", folder / "results"
    source.write_bytes(b"".join(x.contiguous().numpy().tobytes() for x in inputs))
    worker.ask("load", file=str(source), shape=shape, dtype=dtype_name, causal=True)
    worker.ask("check", file=str(result))
    peer = Torch(inputs, dtype)
    ours = torch.frombuffer(bytearray(result.read_bytes()), dtype=torch.float32).reshape(4, *shape)
    for name, actual, expected in zip(("out", "dq", "dk", "dv"), ours, peer.results()):
        error = relative(actual, expected)
        if not error <= AGREEMENT[dtype_name]:
            sys.exit(f"{name} of {shape} {dtype_name} differs from PyTorch's by {error:.1e}: nothing was measured")
    return peer


def bind(processes, processors):
    """Lets all threads of the processes run on these processors only."""
    for process in processes:
        for thread in os.listdir(f"/proc/{process}/task"):
            os.sched_setaffinity(int(thread), processors)


def measure(worker, peer, threads, pass_name):
    """The milliseconds of the calls of every round, by implementation."""
    rounds = {"warpgrad": [], "torch": []}
    for round_number in range(ROUNDS):
        order = list(rounds) if round_number % 2 == 0 else list(reversed(rounds))
        for name in order:
            if threads > 1:
                time.sleep(IDLE)
            if name == "torch":
                rounds[name].append(peer.time(pass_name, threads))
            else:
                rounds[name].append(
                    worker.ask("time", **{"pass": pass_name}, threads=threads, seconds=SECONDS)["ms"]
                )
    return rounds


def summary(rounds):
    """Of every implementation the median over the rounds and the fastest call; how many times as long PyTorch takes, with
    the quartiles of that over the rounds."""
    medians = {name: [statistics.median(calls) for calls in bursts] for name, bursts in rounds.items()}
    middle = {name: statistics.median(values) for name, values in medians.items()}
    ratios = [other / own for own, other in zip(medians["warpgrad"], medians["torch"])]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "ms": middle,
        "best": {name: min(min(calls) for calls in bursts) for name, bursts in rounds.items()},
        "ratio": middle["torch"] / middle["warpgrad"],
        "ratioQuartiles": [low, high],
        "rounds": medians,
    }


def markdown(report):
    lines = [
        f"Causal attention on {report['cpu']} with {report['processors']} processors, {report['instructionSet']};",
        f"PyTorch {report['versions']['torch']} ({report['versions']['torchCapability']}), warpgrad "
        f"{report['versions']['warpgrad']}; {report['date']}. Milliseconds: median of {ROUNDS} alternating rounds, and the "
        "fastest call; the ratio of the medians, with the quartiles of the ratio over the rounds.",
        "",
        "| shape B×S×H×D | dtype | threads | pass | warpgrad | best | PyTorch | best | PyTorch / warpgrad | quartiles |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in report["rows"]:
        cells = [row["case"], row["dtype"], str(row["threads"]), row["pass"]]
        for name in ("warpgrad", "torch"):
            cells += [f"{row['ms'][name]:.2f}", f"{row['best'][name]:.2f}"]
        low, high = row["ratioQuartiles"]
        cells += [f"{row['ratio']:.2f}", f"{low:.2f} to {high:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--node", default="node")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--threads", default=f"1,{os.cpu_count()}")
    arguments = parser.parse_args()
    worker = Worker(arguments.node)
    info = worker.ask("info")
    report = {
        "operation": "attention",
        "device": "cpu",
        "cpu": info["cpu"]["model"],
        "processors": os.cpu_count(),
        "instructionSet": info["cpu"]["instructionSet"],
        "date": datetime.date.today().isoformat(),
        "versions": {
            "warpgrad": info["version"],
            "node": info["nodeVersion"],
            "torch": torch.__version__,
            "torchCapability": torch.backends.cpu.get_cpu_capability(),
        },
        "rows": [],
    }
    processors = os.sched_getaffinity(0)
    processes = [os.getpid(), worker.process.pid]
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            for dtype_name in DTYPES:
                peer = compare(worker, shape, dtype_name, pathlib.Path(folder))
                for threads in (int(text) for text in arguments.threads.split(",")):
                    for pass_name in ("forward", "backward"):
                        bind(processes, processors if threads > 1 else {max(processors)})
                        row = {
                            "case": "×".join(map(str, shape)),
                            "dtype": dtype_name,
                            "threads": threads,
                            "pass": pass_name,
                            **summary(measure(worker, peer, threads, pass_name)),
                        }
                        report["rows"].append(row)
                        print(json.dumps(row), file=sys.stderr, flush=True)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "attention-cpu-torch.json").write_text(json.dumps(report, indent=2) + "\n")
        (arguments.out / "attention-cpu-torch.md").write_text(markdown(report))
    print(markdown(report))


if __name__ == "__main__":
    main()
