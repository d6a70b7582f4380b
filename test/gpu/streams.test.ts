import { attentionForward, Stream, Tensor, type AttentionOptions } from '../../lib';
import { runScript } from '../support/child';
import { expectBitwiseEqual } from '../support/compare';
import { CUDA, describeCuda, keepBusy, Pool } from '../support/cuda';

jest.setTimeout(150_000);

const pool = new Pool('streams');

function draw(shape: readonly number[]): Tensor {
  const { gpu, cpu } = pool.twin(shape, 'bfloat16');
  cpu.dispose();
  return gpu;
}

describeCuda('streams', () => {
  const cu = [0, 300, 300, 811, 1000];
  test.each<[string, number[], number[], AttentionOptions]>([
    ['dense, causal', [2, 900, 4, 128], [2, 900, 4, 128], { causal: true }],
    ['grouped, D 64', [2, 700, 8, 64], [2, 700, 2, 64], {}],
    ['packed, window, D 256', [1000, 4, 256], [1000, 1, 256], { window: [200, 50], cuSeqlensQ: cu, cuSeqlensK: cu }],
  ])('flash-attention 359: 50 repeats under load are bitwise equal: %s', async (_, qShape, kShape, options) => {
    const [q, k, v] = [draw(qShape), draw(kShape), draw(kShape)];
    const load = draw([1, 4096, 8, 128]);
    const [busy, stream] = [new Stream(CUDA), new Stream(CUDA)];
    const first = attentionForward(q, k, v, options);
    const [out, lse] = [await first.out.data(), await first.lse.data()];
    for (let n = 0; n < 50; n++) {
      if (n % 10 === 0) keepBusy(busy, load);
      const again = attentionForward(q, k, v, { ...options, stream });
      expectBitwiseEqual(`out of repeat ${n}`, await again.out.data(), out);
      expectBitwiseEqual(`lse of repeat ${n}`, await again.lse.data(), lse);
      again.out.dispose();
      again.lse.dispose();
    }
    await busy.synchronize();
  });

  test('candle 3596: work on a side stream is ordered after what made its operands, and before what reads its results', async () => {
    const [producer, consumer] = [new Stream(CUDA), new Stream(CUDA)];
    const source = draw([1, 2048, 8, 128]);
    const expected = attentionForward(source, source, source);
    const twice = attentionForward(expected.out, source, source);
    const bits = await twice.out.data();
    for (let n = 0; n < 5; n++) {
      keepBusy(producer, source);
      const made = attentionForward(source, source, source, { stream: producer });
      const used = attentionForward(made.out, source, source, { stream: consumer });
      made.out.dispose(); // while both streams still have work on it
      expectBitwiseEqual('out', await used.out.data(), bits);
    }
  });

  test('a tensor that one stream frees is not handed to another that is behind', async () => {
    const [ahead, behind] = [new Stream(CUDA), new Stream(CUDA)];
    const source = draw([1, 2048, 8, 128]);
    const { out } = attentionForward(source, source, source);
    const bits = await out.data();
    keepBusy(behind, source);
    const copy = out.to({ dtype: 'float32', stream: behind });
    out.dispose();
    const filler = Tensor.from(new Float32Array(source.size).fill(NaN), source.shape, { device: CUDA, stream: ahead });
    await filler.data();
    const back = copy.to({ dtype: 'bfloat16' });
    expectBitwiseEqual('copy', await back.data(), bits);
  });

  test('copyFrom on another stream waits for what the own stream of the tensor still reads', async () => {
    const other = new Stream(CUDA);
    const [source, replacement] = [draw([1, 2048, 8, 128]), draw([1, 2048, 8, 128])];
    const target = source.to({});
    const bits = await source.data();
    for (let n = 0; n < 5; n++) {
      target.copyFrom(source, { stream: other }); // from now on the other stream is the last that wrote it
      keepBusy(Stream.current(CUDA), source);
      const copy = target.to({});
      target.copyFrom(replacement, { stream: other });
      expectBitwiseEqual(`copy ${n}`, await copy.data(), bits);
      copy.dispose();
    }
  });
});

describeCuda('environments', () => {
  test('several worker threads beside the main thread', async () => {
    const end = await runScript('workers.ts', { folder: 'gpu' });
    expect(end).toEqual({ code: 0, signal: null, stdout: 'done\n', stderr: '' });
  });

  test.each(['process.exit', 'end of script'])('a process with work queued ends by %s', async (way) => {
    const end = await runScript('exit.ts', { folder: 'gpu', args: [way] });
    expect(end).toEqual({ code: 0, signal: null, stdout: 'ready\n', stderr: '' });
  });

  test('node-llama-cpp 572: without a visible GPU there is a reason and a quiet fall-back', async () => {
    const end = await runScript('hidden.ts', { folder: 'gpu', env: { CUDA_VISIBLE_DEVICES: '' } });
    expect(end).toMatchObject({ code: 0, signal: null, stderr: '' });
    expect(JSON.parse(end.stdout)).toMatchObject({ available: false, auto: 'cpu', sum: 6 });
  });
});
