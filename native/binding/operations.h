#pragma once

#include <napi.h>

namespace warpgrad::binding {

// attentionForward, attentionBackward, kdaForward, kdaBackward: positional arguments, listed at each definition and
// typed in lib/native.ts. The shapes are checked in lib/ already; ops::check guards against callers that bypass it.
void define_operations(Napi::Env env, Napi::Object exports);

}  // namespace warpgrad::binding
