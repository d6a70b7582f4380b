import { memoryStats, Stream, type MemoryStats } from '../../lib';

/** The memory in use once the work queued on the current stream, which holds what it reads, is done. */
export function settledStats(): MemoryStats {
  Stream.current().synchronizeSync();
  return memoryStats();
}
