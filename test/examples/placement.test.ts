import { placementsOn } from '../../examples/train/placement';

test('on the CPU both operations run in float32', () => {
  expect(placementsOn('cpu')).toMatchObject({ attention: { device: 'cpu' }, kda: { device: 'cpu' } });
});

test('a GPU takes attention, and the program says what it does not take', () => {
  const { attention, kda, summary } = placementsOn('cuda:1');
  expect(attention).toEqual({ device: 'cuda:1', dtype: 'bfloat16', deterministic: true });
  expect(kda).toEqual({ device: 'cpu' });
  expect(summary).toMatch(/attention on cuda:1 .*KDA .*no GPU kernel yet.* on cpu/);
});
