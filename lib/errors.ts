/** Codes of the errors that this package throws or rejects with. */
export type ErrorCode =
  | 'ERR_INVALID_ARG_TYPE'
  | 'ERR_OUT_OF_RANGE'
  | 'ERR_WARPGRAD_NO_DEVICE'
  | 'ERR_WARPGRAD_UNSUPPORTED'
  | 'ERR_WARPGRAD_DISPOSED'
  | 'ERR_WARPGRAD_OUT_OF_MEMORY'
  | 'ERR_WARPGRAD_DEVICE_FAILURE'
  | 'ERR_WARPGRAD_CANCELLED'
  | 'ERR_WARPGRAD_INTERNAL'
  | 'ERR_WARPGRAD_BINARY';

/** An argument or a tensor's dtype has the wrong type, or an option is unknown. */
export class WarpgradTypeError extends TypeError {
  override readonly name = 'WarpgradTypeError';
  readonly code = 'ERR_INVALID_ARG_TYPE';
}

/** An argument has the right type and a value, shape or device that the operation can't take. */
export class WarpgradRangeError extends RangeError {
  override readonly name = 'WarpgradRangeError';
  readonly code = 'ERR_OUT_OF_RANGE';
}

/** Everything else that can go wrong; `code` says what. */
export class WarpgradError extends Error {
  override readonly name = 'WarpgradError';
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.code = code;
  }
}

/**
 * The error classes of this package for what the addon throws: plain errors with a code. Where memory is short, the message
 * starts with who asked for it.
 */
export function fromNative(error: unknown, caller?: string): Error {
  const { code, message: text } = error as { code?: string; message?: string };
  const named = caller !== undefined && code === 'ERR_WARPGRAD_OUT_OF_MEMORY';
  const message = named ? `${caller}: ${text}` : text;
  if (code === 'ERR_OUT_OF_RANGE') return new WarpgradRangeError(message, { cause: error });
  if (code?.startsWith('ERR_WARPGRAD_')) return new WarpgradError(code as ErrorCode, message ?? '', { cause: error });
  return error as Error;
}

/** Runs a call into the addon with its errors translated. */
export function native<Result>(call: () => Result, caller?: string): Result {
  try {
    return call();
  } catch (error) {
    throw fromNative(error, caller);
  }
}
