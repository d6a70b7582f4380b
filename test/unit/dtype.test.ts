import { Tensor } from '../../lib';
import { decode16, encode16 } from '../support/dtypes';
import { Random } from '../support/random';

// Expected values: the formats in plain arithmetic (test/support/dtypes.ts), and bit patterns written out here.

const HALVES = ['float16', 'bfloat16'] as const;
const ALL_BITS = Uint16Array.from({ length: 65536 }, (_, bits) => bits);

async function convert(data: Float32Array | Uint16Array, from: 'float32' | 'float16' | 'bfloat16', to: typeof from) {
  using source = Tensor.from(data, [data.length], { dtype: from });
  using result = source.to({ dtype: to });
  return result.data();
}

const isNaN16 = (bits: number, dtype: (typeof HALVES)[number]) => Number.isNaN(decode16(bits, dtype));

describe('the plain arithmetic that the tests lean on', () => {
  test.each([
    ['float16', 1, 0x3c00],
    ['float16', -2, 0xc000],
    ['float16', 65504, 0x7bff],
    ['float16', 65520, 0x7c00], // halfway to the next power: rounds to infinity
    ['float16', 65519.99, 0x7bff],
    ['float16', 2 ** -24, 0x0001],
    ['float16', 2 ** -25, 0x0000], // tie to even
    ['float16', 3 * 2 ** -25, 0x0002], // tie to even
    ['float16', 2 ** -14, 0x0400],
    ['float16', 1 + 2 ** -11, 0x3c00], // tie to even
    ['float16', 1 + 3 * 2 ** -11, 0x3c02], // tie to even
    ['float16', -0, 0x8000],
    ['bfloat16', 1, 0x3f80],
    ['bfloat16', 1 + 2 ** -8, 0x3f80], // tie to even
    ['bfloat16', 1 + 3 * 2 ** -8, 0x3f82], // tie to even
    ['bfloat16', 3.3895313892515355e38, 0x7f7f],
    ['bfloat16', 3.4e38, 0x7f80],
    ['bfloat16', 2 ** -133, 0x0001],
    ['bfloat16', -Infinity, 0xff80],
  ] as const)('%s %d is 0x%s', (dtype, value, bits) => {
    expect(encode16(value, dtype)).toBe(bits);
  });
});

describe.each(HALVES)('%s', (dtype) => {
  test('all 65,536 bit patterns to float32: every number exact, infinities and NaN kept', async () => {
    const values = await convert(ALL_BITS, dtype, 'float32');
    const wrong = ALL_BITS.filter((bits) => !Object.is(values[bits], decode16(bits, dtype)));
    expect([...wrong]).toEqual([]);
  });

  test('all 65,536 bit patterns to float32 and back: the same bits, NaN stays NaN', async () => {
    const values = (await convert(ALL_BITS, dtype, 'float32')) as Float32Array;
    const back = await convert(values, 'float32', dtype);
    const wrong = ALL_BITS.filter((bits) => (isNaN16(bits, dtype) ? !isNaN16(back[bits], dtype) : back[bits] !== bits));
    expect([...wrong]).toEqual([]);
  });

  test('between neighbours: halfway goes to the even one, anything else to the nearer, of every pair', async () => {
    const inputs: number[] = [];
    for (let bits = 0; bits < 0x7fff; bits++) {
      const [low, high] = [decode16(bits, dtype), decode16(bits + 1, dtype)];
      if (!Number.isFinite(high)) continue;
      const middle = (low + high) / 2;
      inputs.push(middle, -middle, nextFloat32(middle, -1), nextFloat32(middle, 1));
    }
    const results = await convert(Float32Array.from(inputs), 'float32', dtype);
    const wrong = inputs.filter((value, n) => results[n] !== encode16(Math.fround(value), dtype));
    expect(wrong).toEqual([]);
  });

  test('random float32 numbers of every exponent', async () => {
    const random = new Random(`conversion ${dtype}`);
    const bits = Uint32Array.from({ length: 100_000 }, () => random.integer(0, 2 ** 32 - 1));
    const inputs = new Float32Array(bits.buffer);
    const results = await convert(inputs, 'float32', dtype);
    const wrong = inputs.filter((value, n) => {
      return Number.isNaN(value) ? !isNaN16(results[n], dtype) : results[n] !== encode16(value, dtype);
    });
    expect([...wrong]).toEqual([]);
  });

  test('overflow gives infinity, a NaN of any payload a NaN', async () => {
    const payloads = new Float32Array(
      Uint32Array.of(0x7f800001, 0x7fc00000, 0xff800001, 0x7fffffff, 0x7f801fff).buffer,
    );
    const results = await convert(payloads, 'float32', dtype);
    expect([...results].map((bits) => isNaN16(bits, dtype))).toEqual([true, true, true, true, true]);
    const [big, negative] = await convert(Float32Array.of(3.4e38, -3.4e38), 'float32', dtype);
    expect([decode16(big, dtype), decode16(negative, dtype)]).toEqual([Infinity, -Infinity]);
  });

  test('Tensor.from rounds float data the same way', async () => {
    const random = new Random(`from ${dtype}`);
    const inputs = Float32Array.from({ length: 1000 }, () => random.normal());
    using tensor = Tensor.from(inputs, [1000], { dtype });
    expect(tensor.dtype).toBe(dtype);
    expect([...(await tensor.data())]).toEqual([...inputs].map((value) => encode16(value, dtype)));
  });
});

test('float16 and bfloat16 convert to each other through their values', async () => {
  const bits = Uint16Array.from(ALL_BITS.filter((pattern) => !isNaN16(pattern, 'float16')));
  const results = await convert(bits, 'float16', 'bfloat16');
  const wrong = bits.filter((pattern, n) => results[n] !== encode16(decode16(pattern, 'float16'), 'bfloat16'));
  expect([...wrong]).toEqual([]);
});

test('float to int32 truncates and saturates, NaN gives 0; int32 to float rounds to nearest even', async () => {
  using floats = Tensor.from(Float32Array.of(1.9, -1.9, 3e9, -3e9, NaN, Infinity, -Infinity, 0.5));
  using ints = floats.to({ dtype: 'int32' });
  expect([...(await ints.data())]).toEqual([1, -1, 2147483647, -2147483648, 0, 2147483647, -2147483648, 0]);
  using large = Tensor.from(Int32Array.of(16777217, 16777219, -2147483648, 7));
  using back = large.to({ dtype: 'float32' });
  expect([...(await back.data())]).toEqual([16777216, 16777220, -2147483648, 7]);
});

/** The float32 number above or below. */
function nextFloat32(value: number, direction: 1 | -1): number {
  const bits = new Int32Array(Float32Array.of(value).buffer);
  bits[0] += direction;
  return new Float32Array(bits.buffer)[0];
}
