import type { Float64Tensor } from '../../lib/reference/float64';

// The 16-bit formats in plain arithmetic, independent of the library: from their definition, with no bit tricks.

// Looked up once: in Jest's contexts each look-up of a global is slow, and these loops are hot.
const { abs, floor, fround, log2, max, min, round } = Math;
const { isNaN } = Number;
const { is: same } = Object;

export type Operand = 'float32' | 'float16' | 'bfloat16';

interface Format {
  readonly mantissaBits: number;
  readonly minExponent: number; // of the smallest normal number
  readonly maxExponent: number;
}

const FORMATS: Record<'float16' | 'bfloat16', Format> = {
  float16: { mantissaBits: 10, minExponent: -14, maxExponent: 15 },
  bfloat16: { mantissaBits: 7, minExponent: -126, maxExponent: 127 },
};

/** Half the distance from 1 to the next number: the largest relative rounding error. */
export const ROUNDOFF: Record<Operand, number> = { float32: 2 ** -24, float16: 2 ** -11, bfloat16: 2 ** -8 };

/** The number that 16 bits stand for. */
export function decode16(bits: number, dtype: 'float16' | 'bfloat16'): number {
  DECODED[dtype] ??= Float64Array.from({ length: 65536 }, (_, pattern) => decodeByDefinition(pattern, dtype));
  return DECODED[dtype][bits];
}

const DECODED: Partial<Record<'float16' | 'bfloat16', Float64Array>> = {};

function decodeByDefinition(bits: number, dtype: 'float16' | 'bfloat16'): number {
  const { mantissaBits, minExponent, maxExponent } = FORMATS[dtype];
  const sign = bits & 0x8000 ? -1 : 1;
  const biased = (bits & 0x7fff) >>> mantissaBits;
  const fraction = (bits & (2 ** mantissaBits - 1)) / 2 ** mantissaBits;
  if (biased === 0) return sign * fraction * 2 ** minExponent;
  const exponent = biased + minExponent - 1;
  if (exponent > maxExponent) return fraction === 0 ? sign * Infinity : NaN;
  return sign * (1 + fraction) * 2 ** exponent;
}

/** The bits of the nearest 16-bit number, ties to the even one; NaN gives a quiet NaN. */
export function encode16(value: number, dtype: 'float16' | 'bfloat16'): number {
  const { mantissaBits, minExponent, maxExponent } = FORMATS[dtype];
  const topExponentBits = (maxExponent - minExponent + 2) * 2 ** mantissaBits;
  if (isNaN(value)) return topExponentBits + 2 ** (mantissaBits - 1);
  const sign = value < 0 || same(value, -0) ? 0x8000 : 0;
  const magnitude = abs(value);
  if (magnitude === Infinity) return sign + topExponentBits;
  let exponent = max(minExponent, floor(log2(magnitude)));
  if (magnitude < 2 ** exponent && exponent > minExponent) exponent--; // log2 rounds up just below a power of two
  const spacing = 2 ** (exponent - mantissaBits);
  // In units of the spacing: bits of this exponent, plus the carry into the next one that the format is made for.
  const units = roundToEven(magnitude / spacing);
  return sign + min(topExponentBits, units + (exponent - minExponent) * 2 ** mantissaBits);
}

/** The nearest number of a dtype. */
export function roundTo(value: number, dtype: Operand): number {
  return dtype === 'float32' ? fround(value) : decode16(encode16(value, dtype), dtype);
}

/** The tensor with every element rounded to a dtype, as the library sees it once it is given one. */
export function rounded(tensor: Float64Tensor, dtype: Operand): Float64Tensor {
  return { shape: tensor.shape, data: tensor.data.map((value) => roundTo(value, dtype)) };
}

function roundToEven(value: number): number {
  const below = floor(value);
  if (value - below !== 0.5) return round(value);
  return below % 2 === 0 ? below : below + 1;
}
