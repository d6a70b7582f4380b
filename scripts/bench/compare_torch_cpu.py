"""Measures attention on the CPU beside PyTorch's scaled_dot_product_attention, in one run on the same cores.

    python3 scripts/bench/compare_torch_cpu.py [--node node] [--out docs/benchmarks] [--threads 1,2,16]

Both compute the same inputs; results are compared before anything is timed. Rounds alternate between the two, which never
run at the same time; the figure is the median over the rounds of the median of the calls in a round.
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

ROUNDS = 5
SECONDS = 0.4  # of calls, an implementation and round
IDLE = 0.25  # before each burst: the other's threads stop spinning
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
        torch.set_num_threads(threads)
        times = []
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end or len(times) < 4:
            start = time.perf_counter()
            out = self.forward()
            middle = time.perf_counter()
            if pass_name == "forward":
                times.append(middle - start)
                continue
            torch.autograd.grad(out, self.inputs, self.d_out)
            times.append(time.perf_counter() - middle)
        return 1e3 * statistics.median(times[1:])


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


def measure(worker, peer, threads, pass_name):
    times = {"warpgrad": [], "torch": []}
    for round_number in range(ROUNDS):
        order = list(times) if round_number % 2 == 0 else list(reversed(times))
        for name in order:
            time.sleep(IDLE)
            if name == "torch":
                times[name].append(peer.time(pass_name, threads))
            else:
                times[name].append(worker.ask("time", **{"pass": pass_name}, threads=threads, seconds=SECONDS)["ms"])
    return times


def markdown(report):
    lines = [
        f"Causal attention on {report['cpu']} with {report['processors']} processors, {report['instructionSet']};",
        f"PyTorch {report['versions']['torch']} ({report['versions']['torchCapability']}), warpgrad "
        f"{report['versions']['warpgrad']}; {report['date']}. Milliseconds, median of {ROUNDS} alternating rounds.",
        "",
        "| shape B×S×H×D | dtype | threads | pass | warpgrad | PyTorch | PyTorch / warpgrad |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in report["rows"]:
        lines.append(
            f"| {row['case']} | {row['dtype']} | {row['threads']} | {row['pass']} | {row['ms']['warpgrad']:.2f} | "
            f"{row['ms']['torch']:.2f} | {row['ms']['torch'] / row['ms']['warpgrad']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--node", default="node")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--threads", default=f"1,2,{os.cpu_count()}")
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
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            for dtype_name in DTYPES:
                peer = compare(worker, shape, dtype_name, pathlib.Path(folder))
                for threads in (int(text) for text in arguments.threads.split(",")):
                    for pass_name in ("forward", "backward"):
                        times = measure(worker, peer, threads, pass_name)
                        row = {
                            "case": "×".join(map(str, shape)),
                            "dtype": dtype_name,
                            "threads": threads,
                            "pass": pass_name,
                            "ms": {name: statistics.median(values) for name, values in times.items()},
                            "spread": {
                                name: (max(values) - min(values)) / statistics.median(values)
                                for name, values in times.items()
                            },
                        }
                        report["rows"].append(row)
                        print(json.dumps(row), file=sys.stderr)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "attention-cpu-torch.json").write_text(json.dumps(report, indent=2) + "\n")
        (arguments.out / "attention-cpu-torch.md").write_text(markdown(report))
    print(markdown(report))


if __name__ == "__main__":
    main()
