import { placementsOn } from '../../examples/train/placement';

test('on the CPU both operations run in float32', () => {
  expect(placementsOn('cpu')).toMatchObject({ attention: { device: 'cpu' }, kda: { device: 'cpu' } });
});

test('a GPU takes both in bfloat16, attention in the mode that repeats bit for bit', () => {
  const { attention, kda, summary } = placementsOn('cuda:1');
  expect(attention).toEqual({ device: 'cuda:1', dtype: 'bfloat16', deterministic: true });
  expect(kda).toEqual({ device: 'cuda:1', dtype: 'bfloat16' });
  expect(summary).toBe('on cuda:1 in bfloat16');
});
