process.env.WARPGRAD_CPU_THREADS = '1';
process.env.WARPGRAD_CPU_ISA = 'plain';
process.env.WARPGRAD_DISABLE_CUDA = '1';
// After the assignments, as a program would that sets them before it needs the library.
require('./environment');
