import { parseArgs, type ParseArgsConfig } from 'node:util';
import { type Device } from '../index';

/** A command line that can't be understood: reported with the usage, exit status 2. */
export class UsageError extends Error {}

type OptionTypes = NonNullable<ParseArgsConfig['options']>;

/** The values of the options that a command knows; anything else is a `UsageError`. */
export function parseOptions<Options extends OptionTypes>(
  args: readonly string[],
  options: Options,
): ReturnType<typeof parseArgs<{ options: Options; strict: true }>>['values'] {
  try {
    return parseArgs({ args: [...args], options, strict: true }).values;
  } catch (error) {
    const [sentence] = (error as Error).message.split(/\.(?:\s|$)/);
    throw new UsageError(sentence.charAt(0).toLowerCase() + sentence.slice(1));
  }
}

/** The value of `--device`. */
export function parseDevice(value: string): Device | 'auto' {
  if (!/^(auto|cpu|cuda(:\d{1,4})?)$/.test(value)) {
    throw new UsageError(`--device must be auto, cpu, cuda or cuda:N, got '${value}'`);
  }
  return value as Device | 'auto';
}

/** The value of an option with a few allowed words. */
export function parseChoice<Choice extends string>(name: string, value: string, choices: readonly Choice[]): Choice {
  const found = choices.find((choice) => choice === value);
  if (found === undefined) throw new UsageError(`${name} must be ${choices.join(' or ')}, got '${value}'`);
  return found;
}
