/** Objects that belong to the thread that made them. Internal. */
import { inspect, type InspectOptionsStylized } from 'node:util';

/**
 * As an own property this makes a structured clone of its object throw, by `structuredClone` or `postMessage`, with these
 * words in the message: a clone would be a plain object with nothing behind it.
 */
export const boundToThread = (what: string): symbol => Symbol(`${what} belongs to its thread`);

/** Makes `console.log` show objects of a class without that property. */
export function hideMark(Class: { readonly prototype: object }): void {
  Object.defineProperty(Class.prototype, inspect.custom, { value: showFields });
}

function showFields(this: { notCloneable?: symbol }, depth: number, options: InspectOptionsStylized): string {
  const { name } = this.constructor;
  if (depth < 0) return options.stylize(`[${name}]`, 'special');
  const fields = { ...this };
  delete fields.notCloneable;
  return `${name} ${inspect(fields, { ...options, depth })}`;
}
