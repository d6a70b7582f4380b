import { differences, windows, worst } from '../../scripts/bench/gpu/checks.cjs';
import { Peers, PeersLost, unlessLost } from '../../scripts/bench/gpu/peer.cjs';
import { ratiosOf } from '../../scripts/bench/gpu/ratios.cjs';
import { pages } from '../../scripts/bench/gpu/report.cjs';

// What the GPU benchmarks do with their results, which needs no GPU.

// Draws with ES modules, which Jest does not import.
jest.mock('../../scripts/bench/gpu/curves.cjs', () => ({
  curves: (title: string, axis: string, points: { implementation: string; at: number; ms: number }[]) =>
    Promise.resolve([title, axis, ...points.map((point) => Object.values(point).join(' '))].join('\n')),
}));

const row = (label: string, implementation: string, ms: number, curves?: { tokens: number }) => ({
  ...{ case: label, implementation, ms, spread: 0, tflops: 1 / ms, errors: { out: ms / 1000 } },
  ...(curves && { curves }),
});

describe('checks of results', () => {
  const parts = windows(['out', 'lse'], [[3, 1000], [50]]);
  const values = (fill: number) => parts.map(({ slices: [[start, end]] }) => new Float32Array(end - start).fill(fill));

  test('windows lie in the results and reach their ends', () => {
    const large = windows(['out'], [[4096, 4096]]);
    expect(large).toHaveLength(64);
    expect(large.every(({ slices: [[start, end]] }) => end - start === 2048 && end <= 4096 ** 2)).toBe(true);
    expect(parts.map(({ result, slices }) => [result, ...slices[0]])).toEqual([
      [0, 0, 2048],
      [0, 1500, 3000],
      [1, 0, 50],
    ]);
  });

  test('differences are relative, by result', () => {
    expect(differences(['out', 'lse'], parts, values(1.5), values(1))).toEqual({ out: 0.5, lse: 0.5 });
    expect(differences(['out', 'lse', 'unchecked'], parts, values(1), values(1))).toEqual({ out: 0, lse: 0 });
  });

  test.each([
    ['a NaN', 2, new Float32Array(50).fill(NaN)],
    ['a short part', 2, new Float32Array(49).fill(1)],
  ])('%s is no small error', (_, n, broken) => {
    const actual = values(1);
    actual[n] = broken;
    expect(worst(differences(['out', 'lse'], parts, actual, values(1))) <= 1e6).toBe(false);
  });

  test('nor is anything where zeros belong', () => {
    expect(worst(differences(['out', 'lse'], parts, values(1), values(0))) <= 1).toBe(false);
  });
});

describe('peers whose process ends', () => {
  /** Processes that answer so many times, one after the other. */
  const processes = (...answers: number[]) => {
    const started: { lost: boolean; ask: () => Promise<object> }[] = [];
    const start = () => {
      let left = answers[started.length] ?? 0;
      const ask = () => {
        if (left-- > 0) return Promise.resolve({ implementations: ['a', 'b'], versions: { a: '1' }, supported: true });
        process.lost = true;
        return Promise.reject(new PeersLost('ended'));
      };
      const process = { lost: false, ask, stop: () => undefined };
      started.push(process);
      return process as never;
    };
    return { started, peers: new Peers(start, 'scratch') };
  };

  test('are absent from the case, and there again for the next', async () => {
    const { started, peers } = processes(2, 9);
    const [a, b] = await peers.present();
    expect(await unlessLost(() => a.load([], {}))).toBe(true);
    expect(await unlessLost(() => b.load([], {}))).toBeUndefined();
    expect(peers.lost).toBe(true);
    const again = await peers.present();
    expect(again.map(({ name }) => name)).toEqual(['a', 'b']);
    expect(await peers.present()).toBe(again);
    expect([started.length, peers.lost, peers.versions]).toEqual([2, false, { a: '1' }]);
  });

  test('are given up when that does not help', async () => {
    const { started, peers } = processes();
    for (let n = 0; n < 5; n++) expect(await peers.present()).toEqual([]);
    expect([started.length, peers.lost]).toEqual([3, true]);
  });

  test('other errors are not theirs', async () => {
    await expect(unlessLost(() => Promise.reject(new Error('own')))).rejects.toThrow('own');
  });
});

test('a peer is compared with the variant of the same name, and this package with its own default', () => {
  const rows = [
    row('a', 'warpgrad', 2),
    row('a', 'warpgrad saving', 1),
    row('a', 'peer', 6),
    row('a', 'peer saving', 5),
  ];
  const found = Object.entries(ratiosOf(rows)).map(([name, { geometricMean }]) => [name, geometricMean.toFixed(3)]);
  expect(found).toEqual([
    ['warpgrad saving', '0.500'],
    ['peer', '3.000'],
    ['peer saving', '5.000'],
  ]);
});

test('the mean of ratios is geometric, and cases without the peer are left out', () => {
  const rows = [
    ...[row('a', 'warpgrad', 1), row('a', 'peer', 4), row('b', 'warpgrad', 1), row('b', 'peer', 1)],
    row('c', 'warpgrad', 1),
  ];
  expect(ratiosOf(rows)).toEqual({ peer: { geometricMean: 2, minimum: 1 } });
});

const reportOf = (operation: string, rows: ReturnType<typeof row>[]) => ({
  ...{ operation, device: 'NVIDIA H200', driver: null, date: '2026-01-01', versions: {}, commit: '0', rows },
  ...{ failures: [], absences: [], memory: [], callOverheadMicroseconds: 1, ratios: ratiosOf(rows) },
});

test('a page says what its cases are, what its ratios are over, and why a time is missing', async () => {
  const rows = ['warpgrad', 'cuDNN'].map((name) => row('D 64, S 1024, full', name, 1));
  const cell = (label: string, implementation: string, reason: string) => ({ case: label, implementation, reason });
  const absences = [
    ...[cell('a', 'FlashAttention-2', 'it refused'), cell('b', 'FlashAttention-2', 'it refused')],
    cell('c', 'FlashAttention-2', 'it ended'),
  ];
  const attention = (await pages({ ...reportOf('attention-forward', rows), absences }))['.md'];
  expect(attention).toContain('16384 / S sequences of 2048 / D heads');
  expect(attention).toContain("Times over warpgrad's, geometric mean");
  expect(attention.match(/No time of .*/g)).toEqual([
    'No time of FlashAttention-2: it refused: a; b.',
    'No time of FlashAttention-2: it ended: c.',
    'No time of FlashAttention-3: not installed.',
  ]);
  const alone = (await pages(reportOf('attention-forward', rows.slice(0, 1))))['.md'];
  expect(alone).not.toContain('No time of');
  const saving = [...rows, row('D 64, S 1024, full', 'peer saving', 1)];
  const kda = (await pages(reportOf('kda-step', saving)))['.md'];
  expect(kda).toContain(`Times over warpgrad's (those of a "saving" peer over warpgrad saving), geometric mean`);
});

test('the labels of a chart have room', async () => {
  const label = 'T 8192, H 64, packed 1300,547,2048,963,271,3063';
  const svg = (await pages(reportOf('kda-forward', [row(label, 'flash-linear-attention', 1)])))['.svg'];
  const end = Number(/<text x="(\d+)" y="\d+" text-anchor="end">/.exec(svg)?.[1]);
  expect(end / `${label}: flash-linear-attention`.length).toBeGreaterThan(6.6);
});

test('a report has tables, bars, and curves where there are points for them', async () => {
  const report = (lengths: number[]) => {
    const sizes = lengths.flatMap((tokens) => ['warpgrad', 'peer'].map((name, n) => ({ tokens, name, n })));
    const rows = sizes.map(({ tokens, name, n }) => row(`T ${tokens}, H 2`, name, (1 + n) * tokens, { tokens }));
    return { ...reportOf('kda-forward', rows), ratios: {} };
  };
  // Errors beside each other are of the same cases.
  const alone = report([1, 2, 4]);
  alone.rows.push(row('T 8, H 2', 'warpgrad', 8));
  expect((await pages(alone))['.md']).toContain('| out           |   4.0e-3 | 8.0e-3 |');
  const failed = { ...report([1]), failures: ['T 2: it is wrong'] };
  expect((await pages(failed))['.md']).toContain('\nNot measured: T 2: it is wrong.\n');
  const few = await pages(report([1, 2, 4]));
  expect(Object.keys(few)).toEqual(['.json', '.md', '.svg']);
  expect(few['.md']).toContain('| T 4, H 2 |       4.000 |  0.0 % |       0 |   8.000 | 2.00 |');
  expect(few['.md']).toContain('| out           |   4.0e-3 | 8.0e-3 |');
  const enough = await pages(report([1, 2, 4, 8]));
  expect(Object.keys(enough)).toEqual(['.json', '.md', '.svg', '-tokens.svg']);
  expect(enough['-tokens.svg'].split('\n').slice(0, 4)).toEqual([
    ...['kda-forward, bfloat16: NVIDIA H200, H 2', 'tokens', 'warpgrad 1 1', 'peer 1 2'],
  ]);
});
