/** A mistake of the user's: shown as its message alone, without a stack. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}
