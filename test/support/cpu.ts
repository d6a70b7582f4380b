import { configure, systemInfo } from '../../lib';

/** Runs `body` with CPU settings, and puts the usual ones back. */
export async function withCpu<Result>(
  settings: Parameters<typeof configure>[0],
  body: () => Result | Promise<Result>,
): Promise<Result> {
  const { threads } = systemInfo().cpu;
  configure(settings);
  try {
    return await body();
  } finally {
    configure({ cpuThreads: threads, cpuInstructionSet: 'auto' });
  }
}
