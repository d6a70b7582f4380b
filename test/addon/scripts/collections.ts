import { constants, PerformanceObserver, type NodeGCPerformanceDetail } from 'node:perf_hooks';
import { setImmediate as turn } from 'node:timers/promises';
import { Tensor } from '../../../lib';

// Results of 64 and 1 MB, disposed after each call; prints how often the collector went through the whole heap meanwhile.

const CALLS = 200;
const MEGABYTE = 2 ** 20;

async function main(): Promise<void> {
  let collections = 0;
  const observer = new PerformanceObserver((list) => {
    // The type of entries lacks `detail` where that of browsers is there as well.
    for (const { detail } of list.getEntries() as unknown as { detail: NodeGCPerformanceDetail }[]) {
      if (detail.kind === constants.NODE_PERFORMANCE_GC_MAJOR) collections++;
    }
  });
  observer.observe({ entryTypes: ['gc'] });
  for (let call = 0; call < CALLS; call++) {
    const results = [64, 1].map((megabytes) => Tensor.empty([(megabytes * MEGABYTE) / 4]));
    for (const tensor of results) tensor.dispose();
    if (call % 20 === 19) await turn();
  }
  await turn();
  observer.disconnect();
  process.stdout.write(String(collections));
}

void main();
