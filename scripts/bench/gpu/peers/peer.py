"""The Python side of the GPU benchmark: serves requests, one JSON object a line (../peer.cjs is the other side).

An implementation is a function that takes the inputs by name and the options of a case and returns what is timed, a
function without arguments that returns the results, a tensor or a tuple, in the order of ../operations.cjs. It raises
Unsupported for a case that it does not cover.
"""

import json
import statistics
import sys

import torch

WARM_UP = 3


class Unsupported(Exception):
    pass


class Server:
    def __init__(self, implementations, versions, numbers_file, pool_size):
        self.implementations = implementations
        self.versions = versions
        with open(numbers_file, "rb") as stream:
            numbers = torch.frombuffer(bytearray(stream.read()), dtype=torch.bfloat16).cuda()
        self.pool = numbers.repeat(-(-pool_size // len(numbers)))[:pool_size]
        self.calls = {}

    def info(self):
        return {"implementations": list(self.implementations), "versions": {"torch": torch.__version__, **self.versions}}

    def load(self, implementation, sets, options):
        def tensor(offset, shape):
            return self.pool[offset : offset + torch.Size(shape).numel()].view(shape)

        try:
            calls = []
            for inputs in sets:
                tensors = {name: tensor(**place) for name, place in inputs.items()}
                calls.append(self.implementations[implementation](tensors, options))
            calls[0]()
            torch.cuda.synchronize()
        except Exception as error:  # whatever it is: the others go on
            print(f"{implementation}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}", file=sys.stderr)
            return {"supported": False}
        self.calls[implementation] = calls
        return {"supported": True}

    def values(self, implementation, parts, file):
        """Parts of the results, as float32 in a file, and their sizes."""
        results = self.calls[implementation][0]()
        results = results if isinstance(results, tuple) else (results,)
        sizes = []
        with open(file, "wb") as stream:
            for part in parts:
                whole = results[part["result"]]
                whole = whole.reshape(-1) if part["flat"] else whole
                values = whole[tuple(slice(*limits) for limits in part["slices"])].float().cpu().contiguous()
                stream.write(values.numpy().tobytes())
                sizes.append(values.numel())
        return {"sizes": sizes}

    def memory(self, implementation):
        call = self.calls[implementation][0]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        retained = {"retained": call.retained} if hasattr(call, "retained") else {}
        return {"peak": torch.cuda.max_memory_allocated() - before, **retained}

    def time(self, implementation, milliseconds):
        calls = self.calls[implementation]

        def burst(count):
            events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
            events[0].record()
            for n in range(count):
                calls[n % len(calls)]()
                events[n + 1].record()
            torch.cuda.synchronize()
            return [start.elapsed_time(end) for start, end in zip(events, events[1:])]

        estimate = burst(WARM_UP)[-1]
        return {"ms": statistics.median(burst(max(5, round(milliseconds / estimate))))}


def serve(implementations, versions):
    server = Server(implementations, versions, sys.argv[1], int(sys.argv[2]))
    with torch.no_grad():
        for line in sys.stdin:
            request = json.loads(line)
            reply = getattr(server, request.pop("command"))(**request)
            print(json.dumps(reply), flush=True)
