#!/bin/sh
# The GPU suite, benchmarks and checks of an unpacked archive; needs nothing but a GPU and its driver. See run.cjs.
here=$(cd "${0%/*}" && pwd) || exit
exec "$here/node" "$here/scripts/gpu/run.cjs" "$@"
