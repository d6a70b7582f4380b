#include "backends/cpu/runtime/stream.h"

#include <new>
#include <string>
#include <utility>

#include "core/check.h"

namespace warpgrad::cpu {

namespace {

class CpuEvent : public Event {
 public:
  CpuEvent(std::shared_ptr<StreamState> state, uint64_t ticket, std::shared_ptr<const Clock::time_point> time = nullptr)
      : state_(std::move(state)), ticket_(ticket), time_(std::move(time)) {}
  bool reached() const override { return state_->reached(ticket_); }
  void synchronize() const override { state_->block_until(ticket_); }
  double milliseconds_since(const Event& earlier) const override {
    const auto* other = dynamic_cast<const CpuEvent*>(&earlier);
    WG_CHECK(time_ && other && other->time_, ErrorCode::kInternal, "the events have no times to compare");
    return std::chrono::duration<double, std::milli>(*time_ - *other->time_).count();
  }
  StreamState* state() const { return state_.get(); }
  uint64_t ticket() const { return ticket_; }

 private:
  std::shared_ptr<StreamState> state_;
  uint64_t ticket_;
  std::shared_ptr<const Clock::time_point> time_;  // set when it is reached; null for an operation's own event
};

// The failure of an operation as the user sees it: named, with a code.
std::exception_ptr describe_failure(const char* name) {
  try {
    throw;
  } catch (const Error& error) {
    return std::make_exception_ptr(Error(error.code(), concat(name, ": ", error.what())));
  } catch (const std::bad_alloc&) {
    return std::make_exception_ptr(Error(ErrorCode::kOutOfMemory, concat(name, ": out of memory for the workspace")));
  } catch (const std::exception& error) {
    return std::make_exception_ptr(Error(ErrorCode::kInternal, concat(name, ": ", error.what())));
  }
}

}  // namespace

// ---- StreamState
// -----------------------------------------------------------------------------------------------------

EventPtr StreamState::push(Item item) {
  std::unique_lock lock(mutex_);
  space_.wait(lock, [this] { return queue_.size() < kMaxQueuedOperations; });
  WG_CHECK(!closed_, ErrorCode::kCancelled, "the stream was closed");
  EventPtr event = std::make_shared<CpuEvent>(shared_from_this(), enqueued() + 1, item.time);
  if (!active_) engine_->runners->run(shared_from_this());
  active_ = true;
  for (const StoragePtr& storage : item.uses.writes) storage->last_write = event;
  queue_.push_back(std::move(item));
  enqueued_.fetch_add(1, std::memory_order_relaxed);
  return event;
}

void StreamState::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

void StreamState::drop() {
  std::deque<Item> dropped;
  std::vector<Waiter> waiters;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(queue_);
    waiters.swap(waiters_);
  }
  progress_.notify_all();  // whoever waits for a dropped operation sees that the work was cancelled
}

bool StreamState::finished() const {
  std::lock_guard lock(mutex_);
  return closed_ && !active_;
}

EventPtr StreamState::position() {
  return std::make_shared<CpuEvent>(shared_from_this(), enqueued());
}

void StreamState::block_until(uint64_t ticket) const {
  if (reached(ticket)) return;
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&] { return reached(ticket) || cancel_->is_set(); });
}

std::exception_ptr StreamState::take_failure() {
  std::lock_guard lock(mutex_);
  return std::exchange(failure_, nullptr);
}

// Waking a thread costs the caller some microseconds, as much as all else that enqueueing does: between the calls of a
// busy program the thread stays awake for a moment.
void StreamState::spin_for_work() const {
  constexpr int kSpins = 1000;  // about 20 microseconds
  for (int i = 0; i < kSpins && reached(enqueued()); ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

void StreamState::run() {
  // Once it waits or has nothing left, another runner may be at it already.
  while (current_ || take_next()) {
    if (!waits_are_over()) return;
    finish_current();
  }
}

bool StreamState::take_next() {
  spin_for_work();
  std::lock_guard lock(mutex_);
  if (queue_.empty()) {
    active_ = false;
    return false;
  }
  current_ = std::move(queue_.front());
  queue_.pop_front();
  space_.notify_one();
  return true;
}

bool StreamState::waits_are_over() {
  std::vector<EventPtr>& waits = current_->waits;
  for (; !waits.empty(); waits.pop_back()) {
    const EventPtr event = waits.back();
    const auto* own = dynamic_cast<const CpuEvent*>(event.get());
    if (own == nullptr) {
      event->synchronize();
    } else if (own->state()->add_waiter(own->ticket(), shared_from_this())) {
      return false;
    }
  }
  return true;
}

// False if the ticket is reached.
bool StreamState::add_waiter(uint64_t ticket, std::shared_ptr<StreamState> stream) {
  std::lock_guard lock(mutex_);
  if (reached(ticket) || cancel_->is_set()) return false;
  waiters_.push_back({ticket, std::move(stream)});
  return true;
}

void StreamState::finish_current() {
  run_item(*current_);
  const std::function<void(std::exception_ptr)> report = std::move(current_->report);
  // Taken before anybody who blocks on this item goes on and could take it instead.
  const std::exception_ptr failure = report ? take_failure() : nullptr;
  current_.reset();  // frees what only the operation kept alive before anybody is told that it is done
  std::vector<Waiter> rest, due;
  {
    std::lock_guard lock(mutex_);
    completed_.fetch_add(1, std::memory_order_release);
    rest.swap(waiters_);
    for (Waiter& waiter : rest) (reached(waiter.ticket) ? due : waiters_).push_back(std::move(waiter));
  }
  progress_.notify_all();
  for (Waiter& waiter : due) engine_->runners->run(std::move(waiter.stream));
  if (report) report(failure);
}

void StreamState::run_item(Item& item) {
  if (item.time) *item.time = Clock::now();
  if (!item.operation) return;
  try {
    for (const StoragePtr& storage : item.uses.reads) {
      if (storage->failure) std::rethrow_exception(storage->failure);
    }
    try {
      ExecContext context(engine_->isa, *engine_->pool, *cancel_);
      item.operation(context);
    } catch (...) {
      std::rethrow_exception(describe_failure(item.name));
    }
  } catch (...) {
    for (const StoragePtr& storage : item.uses.writes) storage->failure = std::current_exception();
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

// ---- CpuStream
// -------------------------------------------------------------------------------------------------------

CpuStream::CpuStream(std::shared_ptr<const Engine> engine, std::shared_ptr<CancelFlag> cancel)
    : state_(std::make_shared<StreamState>(std::move(engine), std::move(cancel))) {}

CpuStream::~CpuStream() {
  state_->close();
}

EventPtr CpuStream::record() {
  StreamState::Item item;
  item.time = std::make_shared<Clock::time_point>();
  return state_->push(std::move(item));
}

void CpuStream::wait(EventPtr event) {
  StreamState::Item item;
  item.waits.push_back(std::move(event));
  state_->push(std::move(item));
}

void CpuStream::synchronize() {
  state_->block_until(state_->enqueued());
  if (std::exception_ptr failure = state_->take_failure()) std::rethrow_exception(failure);
}

void CpuStream::notify(std::function<void(std::exception_ptr)> done) {
  StreamState::Item item;
  item.report = std::move(done);
  state_->push(std::move(item));
}

void CpuStream::enqueue(const char* name, StorageUses uses, Operation operation) {
  StreamState::Item item;
  item.name = name;
  const auto order_after = [&](const StoragePtr& storage) {
    const EventPtr& event = storage->last_write;
    if (!event || event->reached()) return;
    const auto* own = dynamic_cast<const CpuEvent*>(event.get());
    if (!own || own->state() != state_.get()) item.waits.push_back(event);
  };
  for (const StoragePtr& storage : uses.reads) order_after(storage);
  for (const StoragePtr& storage : uses.writes) order_after(storage);
  item.uses = std::move(uses);
  item.operation = std::move(operation);
  state_->push(std::move(item));
}

std::unique_ptr<Graph> CpuStream::capture(FunctionRef<void()>) {
  throw Error(ErrorCode::kUnsupported, "capture: a CPU stream has no graphs; capture is for streams of a GPU");
}

}  // namespace warpgrad::cpu
