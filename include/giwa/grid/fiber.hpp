// SPDX-License-Identifier: MIT
// Fibers: a fiber has its own stack inside an operating-system thread, and runs from resume() to suspend().
#ifndef GIWA_GRID_FIBER_HPP
#define GIWA_GRID_FIBER_HPP

#include <giwa/base/std.hpp>
#include <giwa/grid/sanitizer.hpp>

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

/// The size of a fiber's stack, in bytes: -DGIWA_FIBER_STACK_BYTES=1048576 for a kernel body with very large local arrays.
/// Memory that no frame touches costs nothing. All files of a program should use the same value.
#ifndef GIWA_FIBER_STACK_BYTES
#if GIWA_DETAIL_ASAN || GIWA_DETAIL_TSAN  // their frames are several times larger
#define GIWA_FIBER_STACK_BYTES (512 * 1024)
#else
#define GIWA_FIBER_STACK_BYTES (128 * 1024)
#endif
#endif

namespace giwa::inline GIWA_ABI::detail::inline GIWA_DETAIL_SANITIZER_TAG {

#if GIWA_DETAIL_ASAN || GIWA_DETAIL_TSAN
// The sanitizers intercept longjmp and swapcontext, and their handling is wrong between stacks. They do not intercept
// getcontext and setcontext, each of which costs a system call: 0.4 us for a switch.
using fiber_context = ucontext_t;

[[gnu::noinline]] GIWA_DETAIL_NO_TSAN inline void switch_context(fiber_context& from, fiber_context& to) {
  volatile bool back = false;
  ::getcontext(&from);  // returns a second time when control switches to `from`
  if (back) return;
  back = true;
  ::setcontext(&to);
}
#else
struct fiber_context {
  jmp_buf saved;
  ucontext_t* first = nullptr;  // where a new fiber starts; null once it has started
};

// _longjmp under another name. Under _FORTIFY_SOURCE the header redirects _longjmp to a version that aborts the program on a
// jump to another stack.
[[noreturn]] void plain_longjmp(jmp_buf, int) noexcept __asm__("_longjmp");

[[gnu::noinline]] inline void switch_context(fiber_context& from, fiber_context& to) {
  if (::_setjmp(from.saved) != 0) return;
  if (to.first == nullptr) plain_longjmp(to.saved, 1);
  const ucontext_t* first = to.first;
  to.first = nullptr;
  ::setcontext(first);
}
#endif

/// Runs body(argument) on its own stack. Exceptions must not leave the body. A fiber that is destroyed before its body
/// returns is abandoned: the destructors of its local variables do not run.
class fiber {
 public:
  using body = void (*)(void* argument);

  fiber() = default;
  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;
  ~fiber() {
#if GIWA_DETAIL_TSAN
    if (inside_.tsan != nullptr) __tsan_destroy_fiber(inside_.tsan);
#elif GIWA_DETAIL_ASAN
    if (inside_.stack != nullptr) __asan_unpoison_memory_region(inside_.stack, inside_.stack_bytes);
#endif
  }

  /// Sets the stack and the body, which starts with the first resume().
  void start(char* stack, stdlib::size_t bytes, body run, void* argument) {
    run_ = run;
    argument_ = argument;
    inside_.stack = stack;
    inside_.stack_bytes = bytes;
#if GIWA_DETAIL_ASAN || GIWA_DETAIL_TSAN
    ucontext_t& first = inside_.context;
#else
    ucontext_t& first = first_;
    inside_.context.first = &first_;
#endif
#if GIWA_DETAIL_TSAN
    inside_.tsan = __tsan_create_fiber(0);
#endif
    ::getcontext(&first);
    first.uc_stack.ss_sp = stack;
    first.uc_stack.ss_size = bytes;
    first.uc_link = nullptr;
    const auto self = reinterpret_cast<stdlib::uintptr_t>(this);  // makecontext passes only values of type int
    ::makecontext(&first, reinterpret_cast<void (*)()>(&fiber::main), 2, static_cast<unsigned>(self >> 32),
                  static_cast<unsigned>(self & 0xffffffffu));
  }

  /// Runs the fiber until it suspends itself or its body returns. A fiber whose body has returned must not be resumed.
  GIWA_DETAIL_NO_TSAN void resume() {
#if GIWA_DETAIL_TSAN
    outside_.tsan = __tsan_get_current_fiber();
#endif
    leave(outside_, inside_, &outside_.fake_stack);
#if GIWA_DETAIL_ASAN
    __sanitizer_finish_switch_fiber(outside_.fake_stack, nullptr, nullptr);
#endif
  }

  /// Returns control to the caller of resume(). Called by the body.
  GIWA_DETAIL_NO_TSAN void suspend() {
    leave(inside_, outside_, &inside_.fake_stack);
    arrive();
  }

  /// For ThreadSanitizer: releases `variable` in the name of the fiber, which is suspended.
  GIWA_DETAIL_NO_TSAN void release([[maybe_unused]] void* variable) {
#if GIWA_DETAIL_TSAN
    void* const self = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(inside_.tsan, __tsan_switch_to_fiber_no_sync);
    __tsan_release(variable);
    __tsan_switch_to_fiber(self, __tsan_switch_to_fiber_no_sync);
#endif
  }

 private:
  struct side {
    fiber_context context;
    const void* stack = nullptr;  // this and the next two are for AddressSanitizer
    stdlib::size_t stack_bytes = 0;
    void* fake_stack = nullptr;
    void* tsan = nullptr;
  };

  // Tells the sanitizers where control goes and switches. Creates no happens-before edge: fibers model threads of a GPU, and
  // the order in which they happen to run does not make writes visible.
  GIWA_DETAIL_NO_TSAN static void leave(side& from, side& to, [[maybe_unused]] void** fake_stack) {
#if GIWA_DETAIL_ASAN
    __sanitizer_start_switch_fiber(fake_stack, to.stack, to.stack_bytes);
#endif
#if GIWA_DETAIL_TSAN
    __tsan_switch_to_fiber(to.tsan, __tsan_switch_to_fiber_no_sync);
#endif
    switch_context(from.context, to.context);
  }

  GIWA_DETAIL_NO_TSAN void arrive() {
#if GIWA_DETAIL_ASAN
    __sanitizer_finish_switch_fiber(inside_.fake_stack, &outside_.stack, &outside_.stack_bytes);
#endif
  }

  GIWA_DETAIL_NO_TSAN static void main(unsigned high, unsigned low) {
    auto* self = reinterpret_cast<fiber*>((stdlib::uintptr_t{high} << 32) | low);
    self->arrive();
    self->run_(self->argument_);
    leave(self->inside_, self->outside_, nullptr);  // null: AddressSanitizer frees the data of this stack
  }

  side inside_, outside_;
#if !GIWA_DETAIL_ASAN && !GIWA_DETAIL_TSAN
  ucontext_t first_;
#endif
  body run_ = nullptr;
  void* argument_ = nullptr;
};

/// Stacks for fibers. Below each is an inaccessible page: a stack overflow is a segmentation fault and does not overwrite
/// the next stack.
class fiber_stacks {
 public:
  fiber_stacks() = default;
  fiber_stacks(const fiber_stacks&) = delete;
  fiber_stacks& operator=(const fiber_stacks&) = delete;
  ~fiber_stacks() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
  }

  static constexpr stdlib::size_t stack_bytes = GIWA_FIBER_STACK_BYTES;

  /// Reserves `count` stacks, once. Returns false if the system refuses.
  bool reserve(int count) {
    const auto page = static_cast<stdlib::size_t>(::sysconf(_SC_PAGESIZE));
    guard_ = page;
    stride_ = page + (stack_bytes + page - 1) / page * page;
    const stdlib::size_t bytes = stride_ * static_cast<stdlib::size_t>(count);
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) return false;
    memory_ = static_cast<char*>(memory);
    bytes_ = bytes;
    for (int i = 0; i < count; ++i)
      if (::mprotect(memory_ + stride_ * static_cast<stdlib::size_t>(i), page, PROT_NONE) != 0) return false;
    return true;
  }

  /// Returns the lowest address of stack i, which has stack_bytes bytes.
  char* operator[](int i) const { return memory_ + stride_ * static_cast<stdlib::size_t>(i) + guard_; }

 private:
  char* memory_ = nullptr;
  stdlib::size_t bytes_ = 0, stride_ = 0, guard_ = 0;
};

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_DETAIL_SANITIZER_TAG

#endif
