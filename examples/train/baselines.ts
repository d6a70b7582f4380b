/** What counting alone achieves: cross-entropies of the unigram and bigram models, in nats a byte. */
import type { Text } from './text';

export interface Baselines {
  readonly unigram: number;
  readonly bigram: number;
}

/**
 * Both models are counted on the training split and measured on the validation split. The unigram counts are smoothed by one;
 * the bigram model is smoothed by Witten and Bell, falling back on the unigram.
 */
export function measureBaselines({ train, validation, alphabet }: Text): Baselines {
  const size = alphabet.length;
  const single = new Float64Array(size);
  const pair = new Float64Array(size * size);
  train.forEach((token, i) => {
    single[token]++;
    if (i > 0) pair[train[i - 1] * size + token]++;
  });
  const seen = new Float64Array(size);
  const distinct = new Float64Array(size);
  pair.forEach((count, i) => {
    if (count === 0) return;
    seen[Math.floor(i / size)] += count;
    distinct[Math.floor(i / size)]++;
  });

  let unigram = 0;
  let bigram = 0;
  for (let i = 1; i < validation.length; i++) {
    const [before, token] = [validation[i - 1], validation[i]];
    const alone = (single[token] + 1) / (train.length + size);
    const fallback = Math.max(distinct[before], 1);
    unigram -= Math.log(alone);
    bigram -= Math.log((pair[before * size + token] + fallback * alone) / (seen[before] + fallback));
  }
  const count = validation.length - 1;
  return { unigram: unigram / count, bigram: bigram / count };
}
