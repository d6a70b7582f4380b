import { attentionForward, memoryStats, Stream, systemInfo, Tensor, type Device } from '../../lib';
import { runScript } from '../support/child';
import { expectBitwiseEqual } from '../support/compare';
import { CUDA, describeCuda, keepBusy } from '../support/cuda';
import { expectError } from '../support/expectError';
import { Random } from '../support/random';
import { toTensor } from '../support/run';

jest.setTimeout(150_000);

// The CUDA runtime below the operations. Expected values: what was put there, and the documented rules.

const draw = (label: string, shape: readonly number[]) => toTensor(new Random(label).tensor(shape), 'bfloat16', CUDA);

describeCuda('memory', () => {
  const GIGABYTE = 2 ** 30;

  test('memoryStats counts tensors alone', async () => {
    const before = memoryStats(CUDA);
    const x = Tensor.zeros([1, 256, 2, 64], { dtype: 'bfloat16', device: CUDA });
    const { out, lse } = attentionForward(x, x, x);
    const view = out.slice(1, 0, 10);
    const bytes = 2 * 256 * 2 * 64 * 2 + 256 * 2 * 4;
    expect(memoryStats(CUDA)).toMatchObject({
      liveBytes: before.liveBytes + bytes,
      allocations: before.allocations + 3,
    });
    out.dispose();
    expect(memoryStats(CUDA).liveBytes).toBe(before.liveBytes + bytes);
    [view, lse, x].forEach((tensor) => tensor.dispose());
    await Stream.current(CUDA).synchronize();
    expect(memoryStats(CUDA).liveBytes).toBe(before.liveBytes);
    expect(memoryStats(CUDA).allocations).toBe(before.allocations);
  });

  test('more than there is: an error with sizes, and all works on', async () => {
    const total = systemInfo().cuda.devices[0].memoryBytes;
    expectError(
      () => Tensor.empty([Math.ceil(total / 2 ** 20), 2 ** 18], { device: CUDA }),
      'ERR_WARPGRAD_OUT_OF_MEMORY',
      /^Tensor\.empty: cuda:0: can't allocate \d+ bytes; \d+ bytes are in use by tensors, \d+ of \d+ bytes are free; dispose /,
    );
    using wide = Tensor.zeros([1, 1, 1, 64], { device: CUDA }).expand([2 ** 16, 2 ** 16, 1, 64]);
    expectError(
      () => attentionForward(wide, wide, wide),
      'ERR_WARPGRAD_OUT_OF_MEMORY',
      /^attentionForward: out: cuda:0: can't allocate 1099511627776 bytes; /,
    );
    expect([...(await Tensor.zeros([2], { device: CUDA }).data())]).toEqual([0, 0]);
  });

  test('what is kept for reuse is given back when another size needs it', async () => {
    const total = systemInfo().cuda.devices[0].memoryBytes;
    const half = Math.floor(total / GIGABYTE / 2);
    // Pieces of a gigabyte each, all freed: the pool keeps them, and can't join them for most of the card in one piece.
    const pieces = Array.from({ length: half }, () => Tensor.empty([GIGABYTE / 4], { device: CUDA }));
    pieces.forEach((piece) => piece.dispose());
    const small = Array.from({ length: 64 }, () => Tensor.empty([GIGABYTE / 4096], { device: CUDA }));
    small.forEach((piece) => piece.dispose());
    using large = Tensor.empty([Math.floor(half * 1.5), GIGABYTE / 4], { device: CUDA });
    expect(large.byteLength).toBeGreaterThan(total * 0.7);
    await Stream.current(CUDA).synchronize();
  });

  test('blocks are reused in the order of their stream', async () => {
    const stream = new Stream(CUDA);
    const source = draw('source', [1, 2048, 8, 128]);
    const expected = await attentionForward(source, source, source, { stream }).out.data();
    const reads = [];
    for (let n = 0; n < 30; n++) {
      const { out, lse } = attentionForward(source, source, source, { stream });
      using copy = out.to({ dtype: 'float32', stream });
      out.dispose(); // its memory goes to the next call while the copy is queued
      lse.dispose();
      reads.push(copy.to({ dtype: 'bfloat16', stream }).data());
    }
    (await Promise.all(reads)).forEach((read, n) => expectBitwiseEqual(`round ${n}`, read, expected));
  });
});

describeCuda('copies', () => {
  test('several results of the CPU that are under way', async () => {
    const q = toTensor(new Random('busy CPU').tensor([1, 700, 4, 64]), 'float32');
    const results = Array.from({ length: 4 }, () => attentionForward(q, q, q).out);
    const moved = results.map((result) => result.to({ device: CUDA }));
    const expected = await results[0].data();
    for (const tensor of moved) expectBitwiseEqual('moved', await tensor.data(), expected);
    [q, ...results, ...moved].forEach((tensor) => tensor.dispose());
  });

  // 16 MiB pass through page-locked memory at once, more in pieces.
  test.each([1, 2 ** 22 - 1, 2 ** 22, 2 ** 22 + 1, 3 * 2 ** 22 + 5])(
    '%i elements, overwritten while they are read',
    async (size) => {
      const values = Int32Array.from({ length: size }, (_, at) => at);
      using tensor = Tensor.from(values, [size], { device: CUDA });
      using other = Tensor.from(
        values.map((value) => -value),
        [size],
        { device: CUDA },
      );
      const first = tensor.data();
      tensor.copyFrom(other);
      using back = tensor.to({ device: 'cpu' });
      expectBitwiseEqual('before', await first, values);
      expectBitwiseEqual('after', await back.data(), await other.data());
    },
  );
});

describeCuda('events', () => {
  test('elapsedSince: the time on the GPU between two events', async () => {
    const stream = new Stream(CUDA);
    using x = draw('x', [1, 4096, 8, 128]);
    attentionForward(x, x, x, { stream });
    const first = stream.record();
    for (let n = 0; n < 20; n++) attentionForward(x, x, x, { stream });
    const second = stream.record();
    const third = stream.record();
    const work = await second.elapsedSince(first);
    expect(work).toBeGreaterThan(0.5); // 20 · 69 GFLOP: not even the peak of the card does that in less than 1.4 ms
    expect(await third.elapsedSince(second)).toBeLessThan(work);
    expect(await third.elapsedSince(first)).toBeGreaterThanOrEqual(work);
    await expect(first.elapsedSince(new Stream().record())).rejects.toMatchObject({ code: 'ERR_OUT_OF_RANGE' });
  });
});

describeCuda('Tensor.fromPointer', () => {
  test('sees the memory of another tensor, on its device', async () => {
    using owner = Tensor.from([1, 2, 3, 4, 5, 6], [2, 3], { device: CUDA });
    using tensor = Tensor.fromPointer(owner.address + 4n, [2, 2], { device: CUDA, strides: [3, 1], owner });
    expect(tensor.device).toBe(CUDA);
    await Stream.current(CUDA).synchronize();
    expect([...(await tensor.data())]).toEqual([2, 3, 5, 6]);
    tensor.copyFrom(Tensor.from([7, 8, 9, 10], [2, 2]));
    expect([...(await owner.data())]).toEqual([1, 7, 8, 4, 9, 10]);
    expect(Stream.current(CUDA).handle).not.toBe(0n);
  });

  test('refuses memory of the host, and what nobody allocated', () => {
    using host = Tensor.zeros([4]);
    const message = 'Tensor.fromPointer: the address must be memory of cuda:0, got an address that no GPU allocated';
    for (const address of [host.address, 64n]) {
      expectError(() => Tensor.fromPointer(address, [4], { device: CUDA }), 'ERR_OUT_OF_RANGE', message);
    }
  });

  test('the owner lives until queued work is done', async () => {
    const end = await runScript('owner.ts', { folder: 'gpu', nodeOptions: ['--expose-gc'] });
    expect(end).toEqual({ code: 0, signal: null, stderr: '', stdout: 'alive\ncollected\n' });
  });
});

describeCuda('a fault', () => {
  test('is told by name, every later call says so, and the process ends by itself', async () => {
    const end = await runScript('fault.ts', { folder: 'gpu' });
    expect(end).toMatchObject({ code: 0, signal: null, stderr: '' });
    const [first, ...later] = end.stdout.trim().split('\n');
    expect(first).toMatch(/^ERR_WARPGRAD_DEVICE_FAILURE copy gave cudaErrorIllegalAddress/);
    expect(later).toHaveLength(5);
    for (const line of later) {
      expect(line).toBe(
        "ERR_WARPGRAD_DEVICE_FAILURE cuda:0 can't be used any more in this process: copy failed with " +
          'cudaErrorIllegalAddress; start a new process',
      );
    }
  });
});

const second = systemInfo().cuda.devices.filter(({ usable }) => usable)[1];
const describeTwo = second ? describe : describe.skip;

describeTwo('two GPUs', () => {
  const [one, two] = [CUDA, `cuda:${second?.index ?? 1}` as Device];

  test('copies go straight from one to the other, in order', async () => {
    using x = draw('x', [1, 2048, 8, 128]);
    const expected = await attentionForward(x, x, x).out.data();
    for (let n = 0; n < 5; n++) {
      const { out } = attentionForward(x, x, x);
      const moved = out.to({ device: two });
      out.dispose();
      expect(moved.device).toBe(two);
      using back = moved.to({ device: one });
      moved.dispose();
      expectBitwiseEqual('there and back', await back.data(), expected);
    }
    using there = x.to({ device: two });
    expectBitwiseEqual('computed there', await attentionForward(there, there, there).out.data(), expected);
    using converted = x.slice(1, 0, 100).to({ device: two, dtype: 'float32' });
    using here = x.slice(1, 0, 100).to({ dtype: 'float32' });
    expectBitwiseEqual('converted', await converted.data(), await here.data());
  });

  test('views, there and back while both are busy', async () => {
    using x = draw('x', [2, 1024, 8, 128]);
    using load = draw('load', [1, 4096, 8, 128]);
    using loadThere = load.to({ device: two });
    const [here, there] = [new Stream(one), new Stream(two)];
    for (let n = 0; n < 5; n++) {
      using view = x.slice(1, 100 * n, 100 * n + 301).transpose(1, 2);
      keepBusy(here, load);
      keepBusy(there, loadThere);
      const moved = view.to({ device: two, stream: there });
      using back = moved.to({ device: one, stream: here });
      moved.dispose();
      expectBitwiseEqual(`copy ${n}`, await back.data(), await view.data());
    }
  });

  test('what the other one still reads is overwritten afterwards', async () => {
    using source = draw('source', [1, 2048, 8, 128]);
    using replacement = draw('replacement', [1, 2048, 8, 128]);
    using target = source.to({});
    using sourceThere = source.to({ device: two });
    const [here, there] = [new Stream(one), new Stream(two)];
    const bits = await source.data();
    for (let n = 0; n < 5; n++) {
      target.copyFrom(n % 2 ? sourceThere : source, { stream: here });
      keepBusy(there, sourceThere);
      using moved = target.to({ device: two, stream: there });
      target.copyFrom(replacement, { stream: here });
      expectBitwiseEqual(`copy ${n}`, await moved.data(), bits);
    }
  });

  test('operations on both are refused', () => {
    using x = Tensor.zeros([1, 4, 2, 64], { dtype: 'bfloat16', device: one });
    using y = Tensor.zeros([1, 4, 2, 64], { dtype: 'bfloat16', device: two });
    expectError(
      () => attentionForward(x, y, y),
      'ERR_OUT_OF_RANGE',
      `attentionForward: k must be on ${one} like q, got ${two}`,
    );
    expectError(
      () => Tensor.fromPointer(y.address, [4], { device: one }),
      'ERR_OUT_OF_RANGE',
      `Tensor.fromPointer: the address must be memory of ${one}, got memory of ${two}`,
    );
  });
});
