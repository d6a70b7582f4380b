import { WarpgradError, WarpgradRangeError, WarpgradTypeError, type ErrorCode } from '../../lib';

/** Fails unless `call` throws an error of the class that goes with `code`, with this code and message. */
export function expectError(call: () => unknown, code: ErrorCode, message: string | RegExp): void {
  const thrown = errorOf(call);
  const kinds: Partial<Record<ErrorCode, new (...args: never[]) => Error>> = {
    ERR_INVALID_ARG_TYPE: WarpgradTypeError,
    ERR_OUT_OF_RANGE: WarpgradRangeError,
  };
  expect(thrown).toBeInstanceOf(kinds[code] ?? WarpgradError);
  const { code: found, message: text } = thrown as WarpgradError;
  expect({ code: found, message: text }).toEqual({
    code,
    message: typeof message === 'string' ? message : expect.stringMatching(message),
  });
}

function errorOf(call: () => unknown): unknown {
  try {
    call();
  } catch (error) {
    return error;
  }
  throw new Error('expected an error, nothing was thrown');
}
