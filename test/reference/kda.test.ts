import { kdaBackwardReference, kdaForwardReference } from '../../lib/reference/kda';
import { expectClose, maxAbs } from '../support/compare';
import { differenceFailures } from '../support/differences';
import { GOLDEN_KDA_RESULTS, goldenNames, kdaCaseOf, loadGolden } from '../support/golden';
import { kdaInputTensors, kdaLoss, kdaReference, randomKdaCase } from '../support/kdaCases';
import { Random } from '../support/random';

// Expected values: test/golden, computed in float64 by other code and rounded once to float32.
describe.each([...goldenNames('kda'), ...goldenNames('kdaChained')])('KDA reference on golden %s', (name) => {
  const golden = loadGolden(name);
  const item = kdaCaseOf(golden);
  const results = kdaReference(item);
  const names = (Object.keys(results) as (keyof typeof results)[]).filter((n) => golden.tensors[GOLDEN_KDA_RESULTS[n]]);

  test.each(names)('%s', (result) => {
    const tensor = GOLDEN_KDA_RESULTS[result];
    const expected = golden.tensors[tensor];
    const natural = golden.stats.natural?.[tensor] ?? 0;
    // Half a unit in the last place of the float32 rounding, and float64 rounding of terms that cancel.
    expectClose(result, results[result]!, expected, {
      maxAbs: (2 ** -24 + 1e-13) * maxAbs(expected.data) + 1e-14 * natural,
    });
  });
});

// Expected values: central differences of the reference's own forward.
describe('KDA reference gradients are the derivatives of its forward', () => {
  const cases = Array.from({ length: 16 }, (_, n) => randomKdaCase(new Random(`KDA derivative ${n}`), 'tiny'));
  test.each(cases.map((item) => [item.title, item] as const))('%s', (_title, item) => {
    const { dFinalState, inputs, options } = item;
    const gradients = kdaBackwardReference(item.dOut, inputs, { ...options, ...(dFinalState && { dFinalState }) });
    const failures = kdaInputTensors(item).flatMap(([input, name]) =>
      differenceFailures(name, () => kdaLoss(item), input, gradients[name]!, 1e-7),
    );
    expect(failures).toEqual([]);
  });
});

// Expected values: by hand. A decay of −∞ forgets everything: each token then sees a zero state.
test('a log decay of -Infinity forgets the state, with no gradient and no NaN', () => {
  const random = new Random('KDA reference forgets');
  const item = randomKdaCase(random, 'tiny');
  const inputs = { ...item.inputs, g: { ...item.inputs.g, data: item.inputs.g.data.map(() => -Infinity) } };
  const { out } = kdaForwardReference(inputs, { scale: 2 });
  const [K, V] = [inputs.q.shape[3], inputs.v.shape[3]];
  const group = inputs.v.shape[2] / inputs.q.shape[2];
  const expected = inputs.v.data.map((value, at) => {
    const row = Math.floor(at / V); // (token, value head)
    const [token, head] = [Math.floor(row / inputs.v.shape[2]), row % inputs.v.shape[2]];
    const qkAt = (token * inputs.q.shape[2] + Math.floor(head / group)) * K;
    let qk = 0;
    for (let d = 0; d < K; d++) qk += inputs.q.data[qkAt + d] * inputs.k.data[qkAt + d];
    return 2 * inputs.beta.data[row] * qk * value;
  });
  expectClose('out', out, { shape: out.shape, data: expected }, { maxAbs: 1e-13 * maxAbs(expected) });
  const { dg } = kdaBackwardReference(item.dOut, inputs, { scale: 2 });
  expect(maxAbs(dg.data)).toBe(0);
  expect(dg.data.some(Number.isNaN)).toBe(false);
});
