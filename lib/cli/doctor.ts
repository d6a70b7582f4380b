import { systemInfo, type Device, type SystemInfo } from '../index';
import { type Command } from './command';
import { operationsOn, type DeviceOperations } from './operationsOn';
import { parseOptions } from './options';

const USAGE = `Usage: warpgrad doctor [--json]

Says what this package sees of the machine, what it would use, and why, and which operations run there.

  --json    the same as JSON
`;

interface Choice {
  readonly device: Device;
  readonly reason: string;
}

const countThreads = ({ threads }: SystemInfo['cpu']): string => `${threads} thread${threads === 1 ? '' : 's'}`;

/** What the device 'auto' means here. */
function choose({ cpu, cuda }: SystemInfo): Choice {
  const gpu = cuda.devices.find((device) => device.usable);
  if (gpu) return { device: `cuda:${gpu.index}`, reason: `${gpu.name} is usable` };
  const how = `${countThreads(cpu)}, ${cpu.instructionSet} instructions`;
  return { device: 'cpu', reason: `no usable GPU: ${cuda.reason ?? 'none was found'}; ${how}` };
}

function describe(info: SystemInfo, choice: Choice, { runs, refusals }: DeviceOperations): string {
  const { cpu, cuda } = info;
  const gpus = cuda.devices.map(
    (gpu) =>
      `${gpu.index}: ${gpu.name}, compute capability ${gpu.computeCapability}, ` +
      `${(gpu.memoryBytes / 2 ** 30).toFixed(0)} GiB, ${gpu.usable ? 'usable' : `not usable: ${gpu.reason}`}`,
  );
  const lines: [string, string][] = [
    ['warpgrad', `${info.version} on Node ${info.nodeVersion}, ${info.platform}`],
    ['binary', info.binary],
    ['processor', `${cpu.model}, ${countThreads(cpu)} in use`],
    ['instructions', `${cpu.instructionSet} (this processor can run ${cpu.instructionSets.join(', ')})`],
    ['GPU kernels', cuda.compiled ? 'in this build' : 'not in this build'],
    ['GPU driver', cuda.driverVersion ? `CUDA ${cuda.driverVersion}` : 'none'],
    ...gpus.map((gpu): [string, string] => ['GPU', gpu]),
    ['would use', `${choice.device}: ${choice.reason}`],
    ['runs there', runs.join(', ')],
    ...refusals.map((reason): [string, string] => ['not there', reason]),
  ];
  return `${lines.map(([name, value]) => `${name.padEnd(14)}${value}`).join('\n')}\n`;
}

export const command: Command = {
  usage: USAGE,
  async run(args) {
    const { json } = parseOptions(args, { json: { type: 'boolean', default: false } });
    const info = systemInfo();
    const choice = choose(info);
    const operations = await operationsOn(choice.device);
    const report = { ...info, wouldUse: choice, operations };
    process.stdout.write(json ? `${JSON.stringify(report, null, 2)}\n` : describe(info, choice, operations));
    return 0;
  },
};
